"""Replays the client's side of recorded connections, and reports how a broker differs from the recording.

Also forecasts the effect of other settings: the engines of both sides under a virtual clock. No socket and no
clock: a recording, bytes and times are the input; bytes and differences the output.
"""
