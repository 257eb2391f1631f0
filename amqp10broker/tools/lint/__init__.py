"""Finds habits in recorded frames that harm a client or others, with remedies.

A recording of frames is the input, findings are the output. It does not depend on this broker: recordings
from any AMQP broker would do.
"""
