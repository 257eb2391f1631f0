"""Addresses, exchanges and bindings: from what a client names to the names of queues."""
