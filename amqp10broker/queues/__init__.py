"""Queues as state machines: commands in, effects out. No task, no clock, no protocol."""
