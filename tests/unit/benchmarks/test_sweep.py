"""What a sweep combines, in which order, and what its load does."""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import cases, sweep
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
    return Context(argparse.Namespace(**{**OPTIONS, **changed}), sweep.BENCHMARK.name)


def test_every_combination_is_measured_with_the_brokers_own_queue_credit() -> None:
    """Sizes outermost, credits innermost; the third dimension has one place unless it is asked for."""
    cells = sweep.Grid.of(context(sweep_credits=[1, 2], sweep_windows=[3, 4], sweep_sizes=[5, 6])).cells()
    assert len(cells) == 8
    assert cells[0] == sweep.Cell(5, None, 3, 1)
    assert cells[-1] == sweep.Cell(6, None, 4, 2)
    assert len({cell.name for cell in cells}) == 8


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
