"""The command line: serve, status, set, alarm."""
