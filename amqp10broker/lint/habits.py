"""What clients of both protocols do alike: settling what they got, and waiting for confirms."""

from __future__ import annotations

from collections.abc import Iterator

from amqp10broker.lint import rules
from amqp10broker.lint.findings import Rule
from amqp10broker.lint.rules import SECOND_NS


class Settling:
    """How a consumer settles.

    Attributes:
        held: deliveries that are not settled, by number, and when they were sent; oldest first.
    """

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self._got = 0
        self._settled = 0
        self._given_back = 0
        self._neighbours = 0
        self._last: tuple[int, int, object] | None = None
        self._longest_ns = 0

    def delivered(self, number: int, at_ns: int) -> None:
        """A message was sent to it."""
        self.held[number] = at_ns
        self._got += 1

    def settled(self, number: int, at_ns: int, *, gives_back: bool) -> None:
        """It has settled one."""
        if len(self.held) >= rules.HELD_MANY:
            self._longest_ns = max(self._longest_ns, at_ns - self.held[number])
        self.held.pop(number, None)
        self._settled += 1
        self._given_back += gives_back

    def came(self, first: int, last: int, at_ns: int, outcome: object) -> None:
        """A settlement of this range came, in a read at this time."""
        if self._last == (at_ns, first - 1, outcome):
            self._neighbours += 1
        self._last = at_ns, last, outcome

    def faults(self) -> Iterator[tuple[Rule, str]]:
        """What can be said while it goes on."""
        if self._neighbours >= rules.OFTEN:
            yield rules.SETTLES_ONE_BY_ONE, f"{self._neighbours} of {self._settled} settlements"
        if self._given_back >= rules.OFTEN and self._given_back == self._settled:
            yield rules.RETURNS_EVERYTHING, f"{self._given_back} messages were given back, none was accepted"
        if self._longest_ns >= rules.HELD_LONG_S * SECOND_NS:
            yield rules.HELD_TOO_LONG, f"a message was held for {seconds(self._longest_ns)}"

    def at_the_end(self, now_ns: int) -> Iterator[tuple[Rule, str]]:
        """What can be said when nothing more comes."""
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


class Confirms:
    """How a publisher waits for confirms.

    Attributes:
        alone: messages in a row that were sent when all before were confirmed, and nothing else was sent
            until they were.
    """

    def __init__(self) -> None:
        self.alone = 0
        self._under_way = 0

    def sent(self) -> bool:
        """A message was sent that will be confirmed; whether it is a habit to send them singly."""
        self._under_way += 1
        if self._under_way > 1:
            self.alone = 0
        return self.alone >= rules.OFTEN

    def confirmed(self, count: int = 1) -> None:
        """Some were confirmed."""
        if self._under_way == count == 1:
            self.alone += 1
        self._under_way = max(0, self._under_way - count)


def seconds(duration_ns: int) -> str:
    """A time for people."""
    return f"{duration_ns / SECOND_NS:.0f} s"
