"""Load programs for brokers of AMQP 1.0 and 0-9-1, one file per question.

The generator is a peer of its own on plain sockets and can load other brokers as well; of the broker it uses
the codecs of both protocols for what is not measured, and the numbers of flow events.
`python -m benchmarks` lists the questions; `README.md` beside this file says how to read the answers.
"""
