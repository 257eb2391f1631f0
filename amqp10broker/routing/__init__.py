"""Addresses and, later, exchanges: from what a client names to queues."""
