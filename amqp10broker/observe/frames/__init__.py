"""Frames of a connection as on the wire: parsed a second time, shown as text, and stored in files.

No socket, no clock and no broker: the input is the bytes of one direction, the output is frames.
"""
