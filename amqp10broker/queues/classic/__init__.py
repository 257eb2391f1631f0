"""The classic queue: first in, first out, in memory or on disk."""
