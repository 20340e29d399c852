"""Hooks for frameworks other than TRL, one module each. Nothing here imports a framework at module level."""
