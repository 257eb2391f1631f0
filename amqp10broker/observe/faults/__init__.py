"""Fault injection for tests of clients."""
