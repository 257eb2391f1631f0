"""The broker's side of AMQP 0-9-1 channels: methods, publishers, confirms, transactions, consumers."""
