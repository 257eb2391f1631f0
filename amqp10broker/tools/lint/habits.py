"""How consumers of both protocols settle their deliveries."""

from __future__ import annotations

from collections.abc import Iterator

from amqp10broker.tools.lint import rules
from amqp10broker.tools.lint.findings import Rule
from amqp10broker.tools.lint.rules import SECOND_NS


class SettlingHabit:
    """How one consumer settles.

    `held` has the unsettled deliveries, oldest first: number and time of sending.
    """

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self._got = 0
        self._settled = 0
        self._given_back = 0

    def delivered(self, number: int, at_ns: int) -> None:
        self.held[number] = at_ns
        self._got += 1

    def settled(self, number: int, *, gives_back: bool) -> None:
        self.held.pop(number, None)
        self._settled += 1
        self._given_back += gives_back

    def faults(self) -> Iterator[tuple[Rule, str]]:
        """Yield violations that are certain during the recording."""
        if self._given_back >= rules.OFTEN and self._given_back == self._settled:
            yield rules.RETURNS_EVERYTHING, f"{self._given_back} messages were given back, none was accepted"

    def at_the_end(self, now_ns: int) -> Iterator[tuple[Rule, str]]:
        """Yield violations that are certain only at the end."""
        if not self.held:
            return
        count, age_ns = len(self.held), now_ns - next(iter(self.held.values()))
        if age_ns < rules.LONG_S * SECOND_NS:
            return
        said = f"{count} of {self._got} messages are unsettled, the first for {seconds(age_ns)}"
        if not self._settled and count >= rules.FEW:
            yield rules.SETTLES_NOTHING, said
        elif self._settled and count >= rules.HELD_MANY and 2 * count >= self._got:
            yield rules.UNSETTLED_GROWS, said


def seconds(duration_ns: int) -> str:
    return f"{duration_ns / SECOND_NS:.0f} s"
