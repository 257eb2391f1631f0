"""Tables and sentences of the article benchmarks: what their runs come to.

The ratios: *isolation* is the fast link's rate with its slow neighbour divided by its rate alone; *together*
counts the neighbour's messages as well, so that what the neighbour cost in processor time is not held
against flow control; *slow / fast* compares the two queues of a pair of publish loops.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.results import Outcome, Row, draw_table


@dataclass(slots=True)
class HalfResult:
    """The runs of one protocol at one delay."""

    protocol: str
    title: str
    """Protocol and delay: what its rows begin with."""
    consumes: bool
    preload: int
    samples: list[Row] = field(default_factory=list)
    isolation: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    slow_to_fast: list[float] = field(default_factory=list)
    flow_seen: list[bool | None] = field(default_factory=list)
    """One for each run with the slow neighbour."""
    shares: list[float] = field(default_factory=list)
    """The slow link's part of all messages."""
    queues: dict[str, int] = field(default_factory=dict)
    """Messages in the queues after the last run with the slow neighbour."""

    def add(self, rows: Mapping[str, Row]) -> None:
        """Take one repetition: the rows of its runs by the name of the neighbour."""
        both, alone = rows["WITH"], rows["ALONE"]
        self.samples += rows.values()
        fast, slow = both["rate_per_s"], both["slow_per_s"]
        self.isolation.append(fast / alone["rate_per_s"])
        self.together.append((fast + slow) / alone["rate_per_s"])
        self.shares.append(slow / (fast + slow))
        self.flow_seen.append(both["flow_seen"])
        self.queues = both["queues"]
        ratios: Row = {"case": f"{self.title}: with / alone", "target": "broker"}
        ratios |= {"isolation": self.isolation[-1], "together": self.together[-1]}
        if not self.consumes:
            fast_count, slow_count = both["queues"].values()
            self.slow_to_fast.append(slow_count / fast_count if fast_count else 0.0)
            ratios["slow_to_fast"] = self.slow_to_fast[-1]
        self.samples.append(ratios)
        if "APART" in rows:
            self.apart.append(fast / rows["APART"]["rate_per_s"])
            self.samples.append(
                {"case": f"{self.title}: with / apart", "target": "broker", "isolation": self.apart[-1]}
            )

    def notes(self) -> list[str]:
        """Say what the runs came to."""
        share = statistics.median(self.shares)
        lines = [
            f"{self.title}: isolation ratio {_spread(self.isolation)}.",
            (
                f"{self.title}: the slow link carried {share:.1%} of the messages. So much a single-core "
                "broker must lose on the fast link by sharing its processor, whatever its flow control "
                f"does. Both links together / the fast one alone: {_spread(self.together)}."
            ),
        ]
        if self.apart:
            lines.append(
                f"{self.title}: {_spread(self.apart)} of the fast link's rate when its neighbour is on a "
                "connection of its own."
            )
        if self.slow_to_fast:
            lines.append(
                f"{self.title}: messages in the slow queue / in the fast one: {_spread(self.slow_to_fast)}."
            )
        known = [one for one in self.flow_seen if one is not None]
        if known:
            lines.append(
                f"{self.title}: the connection was seen in state flow in {sum(known)} of {len(known)} runs."
            )
        early = [row["run_seconds"] for row in self.samples if row.get("ended_early")]
        if early:
            lines.append(
                f"{self.title}: {len(early)} runs ended early, after {min(early):.1f} s at the least: 95 % "
                f"of the {self.preload:,} messages had been consumed."
            )
        return lines


def _spread(ratios: Sequence[float]) -> str:
    """Write ratios as their median, number and range."""
    low, high = min(ratios), max(ratios)
    return f"{statistics.median(ratios):.3f} (median of {len(ratios)}, {low:.3f} to {high:.3f})"


def draw(results: Sequence[HalfResult], fast_type: str, slow_type: str) -> str:
    """Draw the article's table: every queue's name, type and messages after the last run."""
    lines = [
        (queue, kind, str(count))
        for result in results
        for (queue, count), kind in zip(result.queues.items(), (fast_type, slow_type), strict=True)
    ]
    return draw_table(("name", "type", "messages"), lines, ruled=True, left=3)


def join(outcome: Outcome, results: Sequence[HalfResult], fast_type: str, slow_type: str) -> None:
    """Put the results of one delay into the outcome."""
    for result in results:
        outcome.samples += result.samples
        outcome.notes += result.notes()
    outcome.tables.append(draw(results, fast_type, slow_type))
