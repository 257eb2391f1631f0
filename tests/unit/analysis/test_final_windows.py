"""When a recording is over: each run has its end, and files have had their time to come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from amqp10broker.observe.recording.runs import write_run
from amqp10broker.tools.analysis.follow import Ending, first_open_s
from tests.support import synthetic


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def due(ending: Ending, clock: Clock, now: float, *, idle: bool = True) -> bool:
    clock.now = now
    return ending.looks() and ending.due(idle=idle)


def test_a_recording_is_over_when_its_runs_are_and_nothing_comes(tmp_path: Path) -> None:
    """Once, and again when another file has come."""
    first, second = synthetic.two_senders(repetitions=2, events=400)
    synthetic.write(tmp_path, [first])
    write_run(tmp_path, replace(first.run, ended_ns=None))
    clock = Clock()
    ending = Ending(tmp_path, 20, clock)
    assert not due(ending, clock, 10), "files may still come"
    assert not due(ending, clock, 31), "the run goes on"
    write_run(tmp_path, first.run)
    assert not due(ending, clock, 34, idle=False), "the stream is still reading"
    assert not due(ending, clock, 35), "it is too early to look again"
    assert due(ending, clock, 40)
    assert not due(ending, clock, 50), "that was said"
    synthetic.write(tmp_path, [second])
    assert not due(ending, clock, 60)
    assert not due(ending, clock, 79)
    assert due(ending, clock, 81)


def test_the_first_second_that_is_open(tmp_path: Path) -> None:
    """By the mark of the last batch that is over: a second that ends there is closed."""
    assert first_open_s(tmp_path) is None
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert first_open_s(tmp_path) is None
    marks = (0, 100_000, 100_999, 200_000)
    expected = (None, 100, 100)
    for number, mark in enumerate(marks):
        text = f'v1\n{{"batchWatermarkMs":{mark},"conf":{{}}}}\n{{"logOffset":0}}'
        (tmp_path / "offsets" / str(number)).write_text(text)
    for number, second in enumerate(expected):
        (tmp_path / "commits" / str(number)).write_text("v1\n{}")
        assert first_open_s(tmp_path) == second
