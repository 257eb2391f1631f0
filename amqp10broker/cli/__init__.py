"""The command line: one file a noun, each with its `COMMANDS`; `main` finds them."""
