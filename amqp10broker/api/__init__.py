"""The HTTP API without its socket: it takes requests and returns answers."""
