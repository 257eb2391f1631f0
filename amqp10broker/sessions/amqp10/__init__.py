"""The broker's side of AMQP 1.0 sessions and links: publishers, consumers, and why they wait."""
