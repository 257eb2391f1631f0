"""Plays the client's side of recorded connections again, and forecasts the effect of other settings.

A recording, bytes and times are the input; bytes and differences the output: no socket and no clock.
"""
