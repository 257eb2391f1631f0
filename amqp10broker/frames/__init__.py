"""Frames of a connection as they were on the wire: read a second time, in words, and kept in a file.

No socket, no clock and no broker: bytes of one direction go in, frames come out.
"""
