"""The sink: rows become messages, at least once, each with its own message-id."""
