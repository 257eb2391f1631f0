"""Addresses, exchanges and bindings: the way from a client's address to queue names."""
