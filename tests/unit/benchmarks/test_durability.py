"""Which cases the questions about durability put, and what they make of the samples."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import spec
from benchmarks.durability import BASE, cases_of, compare
from benchmarks.measure import Context
from benchmarks.processes import SyncTime

OPTIONS = {
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "credit": 1000,
    "no_floor": True,
    "record": None,
    "max_link_credit": None,
    "max_incoming_window": None,
    "max_queue_credit": None,
    "broker_arg": [],
    "data": False,
    "data_root": Path("/disk"),
    "sync_delay_ms": 7,
    "kind": "",
    "promise_publish_max": 1000,
    "promise_consume_count": 0,
    "versus_count": 1000,
    "versus_sizes": [],
    "against": None,
}


def context(**changed: object) -> Context:
    """Return a run with these options."""
    return Context(argparse.Namespace(**{**OPTIONS, **changed}))


def test_what_is_promised_decides_over_folder_queue_and_messages() -> None:
    """In memory there is no folder and no delay; a delay is that of the folder's syncs."""
    cases = {case.name: case for case in cases_of(context())}
    base, quorum = cases[f"publish: {BASE}"], cases["publish: quorum"]
    assert base.settings is not None
    assert quorum.settings is not None
    assert (base.queue_type, base.durable, base.settings.data_root) == ("classic", False, None)
    assert (quorum.queue_type, quorum.durable) == ("quorum", True)
    assert (quorum.settings.data_root, quorum.settings.sync_delay_ms) == (Path("/disk"), 7)
    assert base.settings.sync_delay_ms == 0


def test_costs_are_compared_with_the_same_work_and_confirms_with_a_sync() -> None:
    """What has no data folder waits for no sync."""
    rows = [
        {"case": f"publish: {BASE}", "cpu_us": 2.0, "confirm_p50_ms": 1.0},
        {"case": "publish: quorum", "cpu_us": 5.0, "confirm_p50_ms": 8.0},
        {"case": "publish: quorum, in memory", "cpu_us": 3.0, "confirm_p50_ms": 8.0},
        {"case": "both: quorum", "failed": "no broker"},
    ]
    compare(rows, SyncTime(4.0, 9.0))
    assert [row.get("cost_ratio") for row in rows] == [1.0, 2.5, 1.5, None]
    assert [row.get("confirm_syncs") for row in rows] == [None, 2.0, None, None]


def test_a_load_is_made_durable_as_a_whole() -> None:
    """And consumers of a stream begin where they are told to, in either protocol."""
    publish, consume = spec.Publish(("a",)), spec.Consume(("a",))
    load: spec.Connections = (
        (spec.Session(publish=(publish,)), spec.Session(consume=(consume,))),
        (spec.Channel(publish=(publish,), consume=(consume,)),),
    )
    (first, second), (channel,) = spec.varied(load, durable=True, from_first=True)
    assert [group.durable for part in (first, channel) for group in part.publish] == [True, True]
    assert [group.offset for part in (second, channel) for group in part.consume] == ["first", "first"]
    assert spec.varied(load) == load
