"""Addresses, exchanges and bindings: from a client's address to the names of queues."""
