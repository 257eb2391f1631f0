"""Frames of a connection as on the wire: parsed a second time, as text, and in files."""
