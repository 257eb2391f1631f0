"""The message container: what a queue keeps and a session delivers."""
