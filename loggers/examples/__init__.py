"""Examples that run: each is a script and also part of the package."""
