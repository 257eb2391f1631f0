"""The stream: a log that consumers read where they want."""
