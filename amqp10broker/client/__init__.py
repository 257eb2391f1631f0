"""The AMQP 1.0 client: the engine of `amqp10` driven from the connecting side.

`blocking.connect` and `trio.connect` make a client on a socket; `core`, `session`, `driving` and `links` are
the parts without I/O that both drive. Nothing is imported here, so that a program pays only for the modules
that it uses.
"""
