"""Whether what clients saw of one name of the metadata has an explanation.

Changes (a declaration, a deletion, a binding, a user) have one order for the whole cluster, in which each
stands between its call and its answer. Each node answers from its own copy, which is a beginning of that
order; so what a client only saw may be old, but never older than what its node has answered before, and never
newer than the call's answer (rules M3 and M4 of a cluster).

The search is that of Wing and Gong (1993): one operation is placed after the other, each time one that no
waiting answer forbids, with a way back where none fits. Each declaration brings a value of its own,
an argument, so that little is explained by chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf
from typing import Final

State = str | None
"""What the name stands for: a value, or None for nothing."""
ANY: Final = "*"
"""What a reading has that does not tell the value: something is there."""


class Kind(Enum):
    PUT = auto()
    """To bring the value into being; refused where another stands."""
    REMOVE = auto()
    """To delete; of nothing this succeeds or is refused, as the operation has it."""
    READ = auto()
    """To see."""


class Answer(Enum):
    DONE = auto()
    REFUSED = auto()
    NONE = auto()
    """A time-out or a lost connection: it may have happened, or happen later, or never."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client.

    Attributes:
        kind: what was asked.
        node: which was asked.
        value: that was put, or was seen.
        began, ended: by one clock; `ended` is infinite without an answer.
        answer: what came of it.
    """

    kind: Kind
    node: str
    value: State
    began: float
    ended: float = inf
    answer: Answer = Answer.DONE

    @property
    def may_change(self) -> bool:
        """Return whether it can be a change and not only a read."""
        return self.kind is not Kind.READ and self.answer is not Answer.REFUSED

    def changed(self, state: State) -> tuple[State, ...]:
        """Return the states after the operation, if it can be a change in this state; else none."""
        if not self.may_change or (state is None) != (self.kind is Kind.PUT):
            return ()
        return (self.value if self.kind is Kind.PUT else None,)

    def saw(self, state: State) -> bool:
        """Return whether a copy in this state explains the operation without a change."""
        if self.kind is Kind.READ:
            return state is not None if self.value == ANY else state == self.value
        if self.kind is Kind.PUT:
            return self.answer is Answer.REFUSED and state not in (None, self.value)
        return state is None


@dataclass(frozen=True, slots=True)
class _Partial:
    """An order so far, without what nothing can depend on any more.

    Attributes:
        placed: which operations, as bits.
        states: the last ones, each behind a change.
        known: of nodes that are asked again: (node, when it answered, which of the states it had then).
    """

    placed: int
    states: tuple[State, ...]
    known: tuple[tuple[str, float, int], ...]


class _Search:
    """The search in one history."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._ordered = sorted(operations, key=lambda each: each.began)

    def finds_one(self) -> bool:
        must = sum(1 << place for place, each in enumerate(self._ordered) if each.answer is not Answer.NONE)
        begin = _Partial(0, (None,), ())
        waiting, seen = [begin], {begin}
        while waiting:
            partial = waiting.pop()
            if partial.placed & must == must:
                return True
            # Reversed: what began first is tried first.
            new = [each for each in reversed(self._steps(partial)) if each not in seen]
            seen.update(new)
            waiting += new
        return False

    def _steps(self, partial: _Partial) -> list[_Partial]:
        found = []
        for place in self._next(partial.placed):
            operation = self._ordered[place]
            if operation.answer is not Answer.NONE:
                # The oldest state that explains it binds later ones least.
                for index in range(_least(partial, operation), len(partial.states)):
                    if operation.saw(partial.states[index]):
                        seen = self._placed(partial, place, partial.states, index)
                        if not operation.may_change:
                            return [seen]  # it is as good here as anywhere later
                        found.append(seen)
                        break
            for state in operation.changed(partial.states[-1]):
                found.append(self._placed(partial, place, (*partial.states, state), len(partial.states)))
        return found

    def _next(self, placed: int) -> list[int]:
        """Return the operations that can be next: none of them began after another had ended."""
        left = self._left(placed)
        limit = min((self._ordered[place].ended for place in left), default=inf)
        return [place for place in left if self._ordered[place].began <= limit]

    def _left(self, placed: int) -> list[int]:
        return [place for place in range(len(self._ordered)) if not placed >> place & 1]

    def _placed(self, partial: _Partial, place: int, states: tuple[State, ...], index: int) -> _Partial:
        operation, placed = self._ordered[place], partial.placed | 1 << place
        again: dict[str, float] = {}
        for each in (self._ordered[left] for left in self._left(placed)):
            again.setdefault(each.node, each.began)  # in order of beginning: the first counts
        # All that a node had answered before it is asked next is one to it.
        known: dict[tuple[str, float], int] = {}
        for node, ended, at in (*partial.known, (operation.node, operation.ended, index)):
            if node in again and ended != inf:
                key = node, max(ended, again[node])
                known[key] = max(known.get(key, 0), at)
        # No node that is asked again can show what is older than all of them know.
        oldest = min(
            (
                max((at for (node, ended), at in known.items() if node == each and ended <= began), default=0)
                for each, began in again.items()
            ),
            default=len(states) - 1,
        )
        return _Partial(
            placed,
            states[oldest:],
            tuple(sorted((node, ended, max(0, at - oldest)) for (node, ended), at in known.items())),
        )


def _least(partial: _Partial, operation: Operation) -> int:
    """Return the oldest state that the operation's node can have."""
    return max(
        (at for node, ended, at in partial.known if node == operation.node and ended <= operation.began),
        default=0,
    )


def is_explained(operations: Sequence[Operation]) -> bool:
    """Return whether some order of the changes explains all operations on a name."""
    return _Search(operations).finds_one()


def check(histories: Mapping[str, Sequence[Operation]]) -> None:
    """Fail with the shortest prefix of a name's history that has no explanation."""
    for name, operations in histories.items():
        if is_explained(operations):
            continue
        by_end = sorted(operations, key=lambda each: (each.ended, each.began))
        # What nothing explains is not explained by what comes after it.
        length = (
            bisect_left(range(len(by_end)), True, key=lambda n: not is_explained(_until(by_end, n + 1))) + 1
        )
        lines = "\n".join(map(str, by_end[max(0, length - 8) : length]))
        raise AssertionError(f"nothing explains what was seen of '{name}', at the last of:\n{lines}")


def _until(by_end: Sequence[Operation], count: int) -> list[Operation]:
    """Return the operations that ended first, and those begun by then as if unanswered."""
    done = list(by_end[:count])
    under_way = (each for each in by_end[count:] if each.began <= done[-1].ended and each.may_change)
    return done + [replace(each, ended=inf, answer=Answer.NONE) for each in under_way]
