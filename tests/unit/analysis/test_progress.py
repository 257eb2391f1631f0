"""How much of Spark's work is done, as it is told."""

from __future__ import annotations

from amqp10broker.tools.analysis.progress import TaskProgress


def test_it_never_runs_backwards() -> None:
    """Spark forgets a stage that is done; its tasks stay done, and further stages make the whole larger."""
    parts = TaskProgress()
    told = []
    for active in ([(0, 3, 10)], [(0, 9, 10), (1, 0, 4)], [(1, 2, 4)], [], [(2, 0, 1)], [(2, 1, 1)]):
        parts.see(active)
        told.append(parts.text())
    assert told == [
        "reading: 3 of 10 parts done",
        "reading: 9 of 14 parts done",
        "reading: 12 of 14 parts done",
        "reading: 14 of 14 parts done",
        "reading: 14 of 15 parts done",
        "reading: 15 of 15 parts done",
    ]


def test_a_task_that_is_repeated_takes_nothing_back() -> None:
    """Spark counts a stage's tasks anew when one was lost."""
    parts = TaskProgress()
    parts.see([(0, 7, 10)])
    parts.see([(0, 2, 10)])
    assert parts.text() == "reading: 7 of 10 parts done"


def test_before_there_is_a_stage_something_is_said() -> None:
    """Planning may take its time."""
    assert TaskProgress().text() == "reading: Spark prepares"
