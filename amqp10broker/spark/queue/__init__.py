"""The queue source: messages are moved from a queue into a spool, and rows are read from there."""
