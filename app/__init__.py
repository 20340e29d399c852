"""The front doors: command line, report and (later) dashboard. Everything heavy is imported when it is needed."""
