"""What the frames of a peer say of its habits: what hurts it, or others, and what to do.

A recording of frames goes in, findings come out. Nothing here is of the broker: a recording of any broker's
client would do.
"""
