"""The command line: one file for each noun, with its `COMMANDS`; `main` finds them."""
