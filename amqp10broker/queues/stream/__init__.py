"""The stream: a log that consumers read from any offset."""
