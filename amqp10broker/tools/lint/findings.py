"""The rules of a lint, and findings with their evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from enum import Enum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.records import RecordedFrame

# The first frames of a finding, which are shown.
EVIDENCE_MAX: Final = 3


class Sort(Enum):
    # Violates the protocol, or requests something impossible.
    FAULT = "fault"
    # Something can be lost, or wait for ever, unnoticed.
    RISK = "risk"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the lint."""

    id: str
    sort: Sort
    finds: str
    why: str
    to_do: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A frame as text; `at_ns` is nanoseconds since 1970."""

    at_ns: int
    text: str


def evidence_of(record: RecordedFrame) -> Evidence:
    return Evidence(record.at_ns, record.text)


@dataclass(slots=True)
class Finding:
    """A violation of a rule. `connection`: number of the connection; 0: several connections."""

    rule: Rule
    connection: int
    where: str
    said: str = ""
    evidence: list[Evidence] = field(default_factory=list)


class Book:
    def __init__(self) -> None:
        self._findings: dict[tuple[str, int, str], Finding] = {}

    def note(self, rule: Rule, connection: int, where: str, said: str, *evidence: Evidence) -> None:
        """Add a finding; a repeated one replaces the text and keeps the first frames."""
        key = (rule.id, connection, where)
        found = self._findings.setdefault(key, Finding(rule, connection, where))
        found.said = said
        found.evidence += evidence[: EVIDENCE_MAX - len(found.evidence)]

    def findings(self) -> Iterator[Finding]:
        """Yield all findings: faults first, then by connection and place."""
        order = list(Sort)
        yield from sorted(
            self._findings.values(),
            key=lambda each: (order.index(each.rule.sort), each.connection, each.where, each.rule.id),
        )
