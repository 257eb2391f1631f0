"""AMQP 0-9-1 with RabbitMQ's extensions: wire format and connection engine. Pure: bytes in, events out."""
