"""What a lint says: its rules, and findings with their evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.frames.records import Recorded

EVIDENCE_MAX: Final = 3
"""Frames that are shown for a finding: its first ones."""


class Sort(Enum):
    """What a finding is about."""

    FAULT = "fault"
    """It breaks the protocol, or what was asked for cannot happen."""
    RISK = "risk"
    """Something can be lost, or wait for ever, without anybody noticing."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One habit.

    Attributes:
        id: its name, which stays.
        sort: what it is about.
        finds: what is looked for, with its bounds.
        why: what it does to the client or to others.
        to_do: what to change.
    """

    id: str
    sort: Sort
    finds: str
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame.

    Attributes:
        at_ns: nanoseconds since 1970.
        text: the frame in words.
    """

    at_ns: int
    text: str


def evidence_of(record: Recorded) -> Evidence:
    """A frame as evidence."""
    return Evidence(record.at_ns, record.text)


@dataclass(slots=True)
class Finding:
    """A rule that something breaks.

    Attributes:
        rule: which.
        connection: whose; 0: of several connections.
        where: what of it: a link, a session, a channel; empty: all of it.
        said: what was seen, with figures.
        evidence: the first frames of it.
    """

    rule: Rule
    connection: int
    where: str
    said: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class Book:
    """Findings, one for each rule and place."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, int, str], Finding] = {}

    def note(self, rule: Rule, connection: int, where: str, said: str, *evidence: Evidence) -> None:
        """Find something, perhaps again: the last words stay, and the first frames."""
        key = (rule.id, connection, where)
        found = self._findings.setdefault(key, Finding(rule, connection, where))
        found.said = said
        found.evidence += evidence[: EVIDENCE_MAX - len(found.evidence)]

    def findings(self) -> Iterator[Finding]:
        """All of them: faults first, then by connection and place."""
        order = list(Sort)
        yield from sorted(
            self._findings.values(),
            key=lambda each: (order.index(each.rule.sort), each.connection, each.where, each.rule.id),
        )
