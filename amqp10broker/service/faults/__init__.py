"""Faults on request, for tests of clients: `table` has those that are on, `parts` who commits them."""
