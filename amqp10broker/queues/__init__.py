"""Queues as state machines: commands in, effects out. They have no task, no clock and no protocol."""
