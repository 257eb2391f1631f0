"""Fault injection for tests of clients: `table` has the active faults, `parts` the sessions and channels."""
