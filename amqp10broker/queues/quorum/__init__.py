"""The quorum queue: a deterministic machine for a log of commands."""
