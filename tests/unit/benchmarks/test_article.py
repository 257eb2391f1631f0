"""What the article benchmarks make of their runs, and which loads they run."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import spec
from benchmarks.__main__ import main
from benchmarks.article import AMQP_091, AMQP_10, SENDER_AND_RECEIVER, TWO_SENDERS, Half, halves
from benchmarks.article_tables import HalfResult, join
from benchmarks.measure import Context
from benchmarks.results import Outcome

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


def test_one_sender_one_receiver_confirms_and_consumes_on_the_same_channel() -> None:
    """Batches of 10 000 unconfirmed messages; prefetch 200, each acknowledged singly."""
    half = Half(SENDER_AND_RECEIVER, AMQP_091)
    (channel,) = half.connection(context(), "fast", "slow")
    assert isinstance(channel, spec.Channel)
    assert channel.confirms
    (sending,), (receiving,) = channel.publish, channel.consume
    assert (sending.addresses, sending.stream, sending.batch) == (("slow",), 1, 10_000)
    assert (receiving.addresses, receiving.credit, receiving.settle) == (("fast",), 200, spec.Settle.EACH)


def test_each_half_can_leave_out_either_link() -> None:
    """Alone, and the neighbour on a connection of its own."""
    for half in (*halves(TWO_SENDERS), *halves(SENDER_AND_RECEIVER)):
        for fast, slow in (("fast", None), (None, "slow")):
            (part,) = half.connection(context(), fast, slow)
            addresses = {queue for group in (*part.publish, *part.consume) for queue in group.addresses}
            assert addresses == {fast or slow}


def test_the_table_has_the_queues_of_both_protocols() -> None:
    """Name, type, messages: the article's table."""
    first = HalfResult(AMQP_091, "AMQP 0-9-1, +5 ms", False, 0)
    first.add(runs(100.0, 98.0, 2000.0, (1000, 980), flow_seen=True))
    second = HalfResult(AMQP_10, "AMQP 1.0, +5 ms", False, 0)
    second.add(runs(1900.0, 100.0, 2000.0, (19_000, 900)))
    outcome = Outcome((), {})
    join(outcome, [first, second], "classic", "quorum, confirms +5 ms")
    (table,) = outcome.tables
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert cells == [
        ["name", "type", "messages"],
        ["fast", "classic", "1000"],
        ["slow", "quorum, confirms +5 ms", "980"],
        ["fast", "classic", "19000"],
        ["slow", "quorum, confirms +5 ms", "900"],
    ]


def test_isolation_and_slow_to_fast_come_from_rates_and_from_queues() -> None:
    """What the neighbour cost in processor time is told beside what it cost in all."""
    result = HalfResult(AMQP_10, "AMQP 1.0, +5 ms", False, 0)
    result.add(runs(1800.0, 200.0, 2000.0, (18_000, 1800)))
    assert (result.isolation, result.together) == ([0.9], [1.0])
    assert result.slow_to_fast == [0.1]
    assert result.samples[-1]["isolation"] == 0.9


def test_the_state_flow_is_told_as_far_as_it_is_known() -> None:
    """A broker that does not tell is not said to have been without it."""
    result = HalfResult(AMQP_091, "AMQP 0-9-1, +5 ms", False, 0)
    result.add(runs(1.0, 1.0, 2.0, (1, 1), flow_seen=True))
    result.add(runs(1.0, 1.0, 2.0, (1, 1), flow_seen=False))
    assert any("in state flow in 1 of 2 runs" in note for note in result.notes())
    unknown = HalfResult(AMQP_10, "AMQP 1.0, +5 ms", False, 0)
    unknown.add(runs(1.0, 1.0, 2.0, (1, 1)))
    assert not any("state flow" in note for note in unknown.notes())


@pytest.mark.parametrize("name", ["two_senders", "one_sender_one_receiver", "all"])
def test_every_question_can_be_asked_for_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In `all` the options of every one of them stand beside each other."""
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "--target" in capsys.readouterr().out
