"""Listeners, connections, sessions and channels as tasks."""
