"""Reading a run: metrics as SQL, the decomposition into sides, the verdict, and figures."""
