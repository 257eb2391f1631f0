"""What the benchmark `http` asks of a broker in its own process."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, cast

import trio

from benchmarks import http_cost


class Context:
    """As much of one as lists need."""

    options = Namespace(http_queues=60)
    repetitions = 1


def test_every_path_is_asked_and_its_steps_are_measured() -> None:
    samples = trio.run(http_cost._ask_for_many, cast("Any", Context()))
    assert [row["case"] for row in samples] == [f"60 queues: {path}" for path in http_cost.ASKED]
    for row in samples:
        assert 0 < row["hold_ms"] <= row["took_cpu_ms"] + 1, row


def test_the_step_in_which_it_begins_to_look_does_not_count() -> None:
    steps = http_cost._Steps()
    task = cast("Any", None)
    steps.after_task_step(task)
    assert steps.longest_ns == 0
    steps.before_task_step(task)
    steps.after_task_step(task)
    assert steps.longest_ns > 0
