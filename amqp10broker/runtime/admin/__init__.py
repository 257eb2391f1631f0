"""The administration socket and the operations behind it."""
