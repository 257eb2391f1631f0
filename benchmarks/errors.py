"""What can go wrong in a run.

    BenchmarkError
    ├── WireError      the peer sent bytes this generator cannot read
    ├── PeerError      the broker refused something or broke a rule of the protocol
    ├── LoadError      a load process failed; the message is its own
    ├── BrokerError    the broker did not start, or ended by itself
    └── MeasureError   nothing could be measured: no progress, or the messages ran out

Each makes the run void: a figure reached by breaking the protocol is no figure.
"""

from __future__ import annotations


class BenchmarkError(Exception):
    """A run that came to nothing; the message says why."""


class WireError(BenchmarkError):
    """The peer sent bytes this generator cannot read."""


class PeerError(BenchmarkError):
    """The broker refused something or broke a rule; the message says what."""


class LoadError(BenchmarkError):
    """A load process could not do what it was told; the message is its own."""


class BrokerError(BenchmarkError):
    """The broker did not start or ended by itself; the message has the end of its log."""


class MeasureError(BenchmarkError):
    """A measurement came to nothing; the message says why."""
