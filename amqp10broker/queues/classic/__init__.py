"""The classic queue: first in, first out, in memory or on the disk."""
