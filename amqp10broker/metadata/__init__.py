"""The metadata of this broker: virtual hosts, queues, exchanges, bindings, users and policies."""
