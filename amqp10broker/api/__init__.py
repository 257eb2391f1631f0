"""The HTTP API without its socket: requests in, answers out."""
