"""What the article benchmarks make of their runs, and which loads they run."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import spec
from benchmarks.article import AMQP_091, TWO_SENDERS, Half
from benchmarks.measure import Context

OPTIONS = {
    "record": None,
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "no_floor": True,
    "turn": 1,
    "batch": 10_000,
    "article_credit": 200,
    "two_senders_body": 12,
    "two_senders_window": 5000,
    "two_senders_fast": "persistent",
    "one_sender_one_receiver_body": 12,
    "one_sender_one_receiver_window": 5000,
}


def context() -> Context:
    """Return a run with the article's own settings."""
    return Context(argparse.Namespace(**OPTIONS))


def runs(fast: float, slow: float, alone: float, counts: tuple[int, int], **extra: Any) -> dict[str, Any]:
    """Return one repetition's rows."""
    queues = dict(zip(("fast", "slow"), counts, strict=True))
    common = {"target": "broker", "ended_early": False, "flow_seen": None}
    return {
        "WITH": {**common, "case": "w", "rate_per_s": fast, "slow_per_s": slow, "queues": queues, **extra},
        "ALONE": {**common, "case": "a", "rate_per_s": alone, "queues": queues},
    }


def test_two_senders_publishes_as_the_article_does_over_one_channel() -> None:
    """Two loops, no confirms, persistent, mandatory, text, in turns message by message."""
    half = Half(TWO_SENDERS, AMQP_091)
    (channel,) = half.connection(context(), "fast", "slow")
    assert isinstance(channel, spec.Channel)
    assert not channel.confirms
    assert [(one.addresses, one.stream, one.burst) for one in channel.publish] == [
        (("fast",), 0, 1),
        (("slow",), 1, 1),
    ]
    for one in channel.publish:
        assert (one.size_bytes, one.durable, one.mandatory, one.content_type) == (
            12,
            True,
            True,
            "text/plain",
        )
