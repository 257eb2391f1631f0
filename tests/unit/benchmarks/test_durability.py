"""Which cases the questions about durability put, and what they make of the samples."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import spec
from benchmarks.__main__ import main
from benchmarks.broker_process import BrokerSettings
from benchmarks.cases import ratios
from benchmarks.durability import BASE, IN_FLIGHT, cases_of, compare
from benchmarks.errors import BenchmarkError
from benchmarks.measure import Context
from benchmarks.processes import SyncTime
from benchmarks.versus import BEFORE, NOW, run, works

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


def test_two_thousand_messages_are_in_flight_in_either_protocol() -> None:
    """The broker's own credit must not be what limits them."""
    cases = {case.name: case for case in cases_of(context())}
    for name in ("publish: quorum", "publish, AMQP 0-9-1: quorum"):
        case = cases[name]
        ((part,),) = case.connections(str)
        assert part.publish[0].in_flight_max == IN_FLIGHT
        assert case.settings is not None
        assert case.settings.max_link_credit == IN_FLIGHT
    ((part,),) = cases["publish, 1 in flight: quorum"].connections(str)
    assert part.publish[0].in_flight_max == 1


def test_kinds_can_be_chosen_by_a_part_of_their_name() -> None:
    """Every case has its kind's name at the end."""
    names = [case.name for case in cases_of(context(kind="quorum"))]
    assert names
    assert all(name.rpartition(": ")[2].startswith("quorum") for name in names)


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


def test_now_is_divided_by_before_and_a_failed_case_has_no_ratio() -> None:
    """Both are of one repetition."""
    rows = [
        {"case": f"publish: {BEFORE}", "cpu_us": 2.0},
        {"case": f"publish: {NOW}", "cpu_us": 3.0},
        {"case": f"both: {NOW}", "cpu_us": 3.0},
    ]
    assert [
        (row["case"], row["ratio_before"])
        for row in ratios(rows, ["publish", "both"], NOW, BEFORE, "ratio_before")
    ] == [("publish: now / before", 1.5)]


def test_without_another_checkout_nothing_is_compared(tmp_path: Path) -> None:
    """`all` goes on; a folder that is no checkout is an error, for it was meant to be one."""
    outcome = run(context())
    assert outcome.samples == []
    assert "--against" in outcome.notes[0]
    with pytest.raises(BenchmarkError, match="no checkout"):
        run(context(against=tmp_path))


def test_what_is_compared_with_before_asks_for_no_durability() -> None:
    """The path that must not have become dearer."""
    for case in works(context()):
        assert not case.durable
        for connection in case.connections(str):
            for part in connection:
                assert not any(group.durable for group in part.publish)


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


def test_faults_are_injected_in_test_mode_only() -> None:
    """The broker refuses them otherwise."""
    assert BrokerSettings(max_link_credit=None).arguments() == []
    arguments = BrokerSettings(max_link_credit=None, sync_delay_ms=5).arguments()
    assert arguments == ["--test-mode", "--sync-delay", "5"]


@pytest.mark.parametrize("name", ["durability", "versus"])
def test_every_question_can_be_asked_for_a_data_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The options are common to all."""
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert "--data-root" in capsys.readouterr().out
