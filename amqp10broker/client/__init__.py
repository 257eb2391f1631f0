"""The AMQP 1.0 client: `blocking.connect` and `trio.connect` make one on a socket.

Nothing is imported here, so that a program loads only the modules that it uses.
"""
