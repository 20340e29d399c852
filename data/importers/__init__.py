"""Importers: other frameworks' dumps into a run directory. One module a format; `convert.py` is the way in."""
