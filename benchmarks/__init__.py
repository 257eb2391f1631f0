"""Load programs for AMQP 1.0 brokers, one file per question.

Nothing here imports the broker: the generator is an independent peer built on plain sockets, so that
it can also load other brokers, and so that a mistake in the broker's codec cannot hide in its own test.
`python -m benchmarks` lists the questions; `README.md` beside this file says how to read the answers.
"""
