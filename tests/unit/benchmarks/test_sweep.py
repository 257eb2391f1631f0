"""What a sweep combines, in which order, and what its load does."""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import cases, spec, sweep
from benchmarks.errors import MeasureError
from benchmarks.measure import Context
from benchmarks.results import Row

OPTIONS: dict[str, Any] = {
    "quick": True,
    "repetitions": None,
    "duration": None,
    "warmup": None,
    "size": 100,
    "credit": 1000,
    "no_floor": True,
    "record": None,
    "record_every": 50,
    "target": None,
    "max_link_credit": None,
    "max_incoming_window": None,
    "max_queue_credit": None,
    "broker_arg": [],
    "data": False,
    "data_root": Path("/disk"),
    "sync_delay_ms": 0,
    "sweep_credits": None,
    "sweep_windows": None,
    "sweep_queue_credits": None,
    "sweep_sizes": None,
    "sweep_seed": 1,
    "rate": 0.0,
}


def context(**changed: Any) -> Context:
    """Return a run with these options."""
    return Context(argparse.Namespace(**{**OPTIONS, **changed}), sweep.BENCHMARK.name)


def load_of(case: cases.Case) -> tuple[spec.Publish, spec.Consume]:
    """Return the sending and the receiving group of a case."""
    (sending,), (receiving,) = case.connections(lambda queue: queue)
    return sending.publish[0], receiving.consume[0]


def test_every_combination_is_measured_with_the_brokers_own_queue_credit() -> None:
    """Sizes outermost, credits innermost; the third dimension has one place unless it is asked for."""
    cells = sweep.Grid.of(context(sweep_credits=[1, 2], sweep_windows=[3, 4], sweep_sizes=[5, 6])).cells()
    assert len(cells) == 8
    assert cells[0] == sweep.Cell(5, None, 3, 1)
    assert cells[-1] == sweep.Cell(6, None, 4, 2)
    assert len({cell.name for cell in cells}) == 8


def test_the_queue_credit_is_a_third_dimension() -> None:
    """It goes to the broker and into the name."""
    run = context(sweep_queue_credits=[64, 256])
    cells = sweep.Grid.of(run).cells()
    assert len(cells) == 3 * 2 * 2
    case = sweep.case_of(run, cells[0])
    assert case.settings is not None
    assert case.settings.max_queue_credit == cells[0].queue_credit == 64
    assert "queue credit 64" in case.name
    assert len({cell.name for cell in cells}) == len(cells)


def test_all_settings_are_recorded_as_one_case() -> None:
    """Repetitions are told apart by their settings, which are columns of their own."""
    run = context()
    assert {sweep.case_of(run, cell).recorded_as for cell in sweep.Grid.of(run).cells()} == {
        sweep.RECORDED_AS
    }


@pytest.mark.parametrize(
    ("changed", "size_bytes", "stamped"),
    [
        ({}, 100, False),
        ({"record": Path("/recording")}, 100, True),
        ({"rate": 1000.0}, 100, True),
        ({"rate": 1000.0}, 7, False),
        ({"rate": 1000.0}, 1024 * 1024, False),
    ],
)
def test_messages_carry_their_time_when_latency_is_asked_for(
    changed: dict[str, Any], size_bytes: int, stamped: bool
) -> None:
    """A recording or a rate asks for it; a message that has no room for the stamp goes without."""
    publish, consume = load_of(sweep.case_of(context(**changed), sweep.Cell(size_bytes, None, 400, 170)))
    assert (publish.stamp, consume.stamp) == (stamped, stamped)
    assert publish.rate_per_s == changed.get("rate", 0.0)


def test_each_repetition_has_an_order_of_its_own_and_a_seed_repeats_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every repetition has every case once; the same seed gives the same orders, another one others."""

    def measured(context: Context, case: cases.Case, target: str) -> Row:
        return {"case": case.name, "target": target}

    monkeypatch.setattr(cases, "_measured", measured)
    run = context(repetitions=4)
    all_cases = [sweep.case_of(run, cell) for cell in sweep.Grid.of(run).cells()]

    def orders(seed: int) -> list[list[str]]:
        names = [row["case"] for row in cases.run_cases(run, all_cases, Random(seed))]
        return [names[start : start + 6] for start in range(0, len(names), 6)]

    first = orders(1)
    assert all(sorted(order) == sorted(case.name for case in all_cases) for order in first)
    assert len({tuple(order) for order in first}) == 4
    assert orders(1) == first
    assert orders(2) != first


def test_rows_have_the_order_of_the_table_whatever_was_measured_first() -> None:
    """Medians are found by name: the order of measuring is chance."""
    cells = [sweep.Cell(100, None, 400, 10), sweep.Cell(100, None, 400, 170)]
    samples: list[Row] = [
        {"case": cells[1].name, "target": "broker", "rate_per_s": 9.0},
        {"case": cells[0].name, "target": "broker", "rate_per_s": 1.0},
        {"case": cells[0].name, "target": "broker", "rate_per_s": 3.0},
        {"case": cells[1].name, "target": "broker", "failed": "why"},
    ]
    rows = sweep.rows_of(samples, cells)
    assert [(row["credit"], row["rate_per_s"]) for row in rows] == [(10, 2.0), (170, 9.0)]


def test_settings_of_a_foreign_broker_are_not_swept() -> None:
    """They are its owner's affair; rows that name settings nobody set would be wrong."""
    run = context(target="127.0.0.1:5672")
    with pytest.raises(MeasureError, match="leave out --target"):
        sweep.measure(run, sweep.Grid.of(run).cells(), 1, 1)
