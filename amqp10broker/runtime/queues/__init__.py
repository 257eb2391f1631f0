"""The tasks of queues, and the ways to them."""
