"""Hooks for frameworks other than TRL, all built on `Recorder`: verl, SkyRL, OpenRLHF, slime.

A job is recorded when the environment says so: `TIMSCOPE_RUN` names the run directory (or fsspec URL),
`TIMSCOPE_OPTIONS` may hold a JSON object of `Recorder` options. docs/loggers.md has the recipe of each framework. No
module here imports torch or a framework while it is being imported.
"""
