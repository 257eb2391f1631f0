"""Recordings, traces, watches, measurements and faults of a running broker."""
