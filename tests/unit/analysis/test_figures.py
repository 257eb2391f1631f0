"""The definitions of the figures, on events that were written by hand; DuckDB adds them up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from amqp10broker.observe.flow_events import FIELDS, PACK, EventKind
from amqp10broker.observe.recording.runs import EventWriter, RunRecord, write_run
from amqp10broker.tools.analysis.figures import Measured, compare, configurations, groups
from tests.support.flow_oracle import measured

BEGAN = 1_790_000_000_000_000_000
S = 1_000_000_000
RUN = RunRecord(
    run_id="r1",
    benchmark="sweep",
    began_ns=BEGAN,
    ended_ns=BEGAN + 10 * S,
    max_link_credit=100,
    max_incoming_window=400,
    max_queue_credit=256,
    protocol="amqp10",
)


def event(at_s: float, kind: EventKind, **values: int) -> bytes:
    """One packed event, so many seconds after the run began."""
    columns = {"ts_ns": BEGAN + round(at_s * S), "kind": int(kind), **values}
    return PACK.pack(*(columns.get(field.name, 0) for field in FIELDS))


def figures(folder: Path, events: Iterable[bytes], run: RunRecord = RUN) -> Measured:
    with EventWriter(folder, run.run_id) as writer:
        for each in events:
            writer.write(each)
    write_run(folder, run)
    return measured(folder)[1][0]


def test_warm_up_and_what_comes_after_the_end_do_not_count(tmp_path: Path) -> None:
    """An event belongs to the run by its time; both ends belong to it."""
    sent = [(-0.1, 1000), (0.0, 1), (5.0, 10), (10.0, 100), (10.1, 1000)]
    found = figures(tmp_path, [event(at, EventKind.CLIENT_RECEIVED, n=n, value_ns=S) for at, n in sent])
    assert found.figures.throughput_per_s == pytest.approx(111 / 10)
    assert found.figures.events == 3


def test_a_run_that_is_still_recorded_counts_up_to_its_last_event(tmp_path: Path) -> None:
    run = replace(RUN, ended_ns=None)
    found = figures(
        tmp_path, [event(at, EventKind.CLIENT_RECEIVED, n=50, value_ns=S) for at in (1, 2, 4)], run
    )
    assert found.figures.complete is False
    assert found.figures.duration_s == pytest.approx(4)
    assert found.figures.throughput_per_s == pytest.approx(150 / 4)


def test_throughput_is_what_came_furthest(tmp_path: Path) -> None:
    """Received, else confirmed or sent by stream, else out of the broker, else into it."""
    into = event(1, EventKind.LINK_IN, n=400, value_ns=S)
    out = event(1, EventKind.LINK_OUT, n=300, value_ns=S)
    sent = [event(1, EventKind.CLIENT_SENT, n=200, value_ns=S, channel=stream) for stream in (0, 1)]
    confirmed = event(1, EventKind.CLIENT_CONFIRM, n=150, value_ns=S, channel=1)
    received = event(1, EventKind.CLIENT_RECEIVED, n=100, value_ns=S)
    steps = [([into], 40), ([out], 30), (sent, 40), ([confirmed], 35), ([received], 10)]
    known: list[bytes] = []
    for number, (more, rate) in enumerate(steps):
        known += more
        found = figures(tmp_path / str(number), known)
        assert found.figures.throughput_per_s == pytest.approx(rate), found.figures.throughput_source


def test_streams_are_figured_apart_and_named_by_the_run(tmp_path: Path) -> None:
    """The fast and the slow one of two_senders."""
    run = replace(RUN, settings=json.dumps({"streams": ["fast", "slow"]}))
    events = [
        event(1, EventKind.CLIENT_CONFIRM, n=n, value_ns=ms * 1_000_000, channel=stream)
        for stream, n, ms in ((0, 900, 1), (1, 90, 50))
    ]
    found = figures(tmp_path, events, run)
    assert [(one.stream, one.confirmed_per_s, one.sent_per_s) for one in found.streams] == [
        ("fast", 90.0, None),
        ("slow", 9.0, None),
    ]
    assert found.streams[1].confirm_p50_ms == pytest.approx(50, rel=0.045)
    assert found.figures.throughput_per_s == pytest.approx(99)


def test_confirm_latency_is_the_clients_if_it_wrote_it_down(tmp_path: Path) -> None:
    broker = event(1, EventKind.CONFIRM, n=10, value_ns=1_000_000)
    client = event(1, EventKind.CLIENT_CONFIRM, n=10, value_ns=8_000_000)
    alone = figures(tmp_path / "a", [broker]).figures
    both = figures(tmp_path / "b", [broker, client]).figures
    assert (alone.confirm_source, both.confirm_source) == ("broker", "client")
    assert alone.confirm_p50_ms == pytest.approx(1, rel=0.045)
    assert both.confirm_p99_ms == pytest.approx(8, rel=0.045)


def test_the_depth_of_queues_is_a_mean_over_time(tmp_path: Path) -> None:
    """A burst of changes in a tenth of a second has many events, and a tenth of a second's weight."""
    burst = [
        event(5 + number / 100, EventKind.QUEUE, queue_depth=1000, handle=1, value_ns=S // 100)
        for number in range(1, 11)
    ]
    quiet = [event(at, EventKind.QUEUE, handle=1, value_ns=S) for at in (1, 2, 3, 4, 5)]
    # It began before the run did: the part inside counts.
    other = event(4.9, EventKind.QUEUE, handle=2, queue_depth=50, value_ns=9 * S)
    found = figures(tmp_path, [*quiet, *burst, other]).figures
    assert found.queue_depth_mean == pytest.approx((0.1 * 1000 + 4.9 * 50) / 10)
    assert found.queue_depth_max == 1000


def test_windows_and_queue_credit_used(tmp_path: Path) -> None:
    """Of the limits of the run; of a consumer's credit, of the most it had."""
    events = [
        event(1, EventKind.LINK_IN, value_ns=S, incoming_window=100, queue_credit=30),
        event(1, EventKind.LINK_OUT, value_ns=S, queue_credit=64, link_credit=20),
        event(2, EventKind.LINK_OUT, value_ns=S, queue_credit=64, link_credit=40),
    ]
    found = figures(tmp_path, events).figures
    assert found.window_utilisation == pytest.approx(0.75)
    assert found.queue_credit_utilisation == pytest.approx(0.75)
    assert found.consumer_credit_utilisation == pytest.approx(0.25)
    assert found.unconfirmed_mean == pytest.approx(30)


def test_repetitions_are_taken_together_and_other_settings_apart(tmp_path: Path) -> None:
    """By the columns of a configuration; groups differ in settings and rate limit alone."""
    for number, (credit, n) in enumerate(((100, 900), (100, 1100), (50, 400))):
        run = replace(RUN, run_id=f"r{number}", repetition=number, max_link_credit=credit)
        figures(tmp_path, [event(1, EventKind.CLIENT_RECEIVED, n=n, value_ns=S)], run)
    other = replace(RUN, run_id="other", message_size_bytes=10)
    figures(tmp_path, [event(1, EventKind.CLIENT_RECEIVED, n=1, value_ns=S)], other)
    found = configurations(measured(tmp_path)[1])
    assert [(each["max_link_credit"], each.values("throughput_per_s")) for each in found] == [
        (50, (40.0,)),
        (100, (90.0, 110.0)),
        (100, (0.1,)),
    ]
    together = groups(found)
    assert [len(members) for members in together] == [2, 1]
    compared = compare(together[0], "throughput_per_s", highest=True)
    assert [(one.mean, one.difference, one.distinguishable) for one in compared] == [
        (100.0, 0.0, None),
        (40.0, -60.0, None),
    ]
