"""Histories of one name of the metadata, to try checkers with: what may be, what may not, random ones."""

from __future__ import annotations

import random
from math import inf
from typing import Final

from tests.support.linearizable import ANY, Answer, Kind, Operation, State


def put(value: str, began: float, ended: float, node: str = "a", answer: Answer = Answer.DONE) -> Operation:
    return Operation(Kind.PUT, node, value, began, ended, answer)


def remove(began: float, ended: float, node: str = "a", answer: Answer = Answer.DONE) -> Operation:
    return Operation(Kind.REMOVE, node, None, began, ended, answer)


def read(value: State, began: float, ended: float, node: str = "a") -> Operation:
    return Operation(Kind.READ, node, value, began, ended)


GOOD: Final = {
    "one after the other": [put("x", 0, 1), read("x", 2, 3), remove(4, 5), put("y", 6, 7), read("y", 8, 9)],
    "a reading without a value": [put("x", 0, 1), read(ANY, 2, 3), remove(4, 5), read(None, 6, 7)],
    "side by side": [put("x", 0, 9), read("x", 1, 2), remove(1, 8), read(None, 3, 4), put("y", 0, 9)],
    "a refusal": [put("x", 0, 1), put("y", 2, 3, answer=Answer.REFUSED)],
    "another node lags": [put("x", 0, 1), read(None, 2, 3, "b"), read("x", 4, 5, "b")],
    "a refusal of what is gone elsewhere": [
        put("x", 0, 1),
        remove(2, 3),
        put("y", 4, 5, "b", answer=Answer.REFUSED),
        put("z", 4, 5),
    ],
    "two deletions of one": [put("x", 0, 1), remove(2, 3), remove(4, 5, "b")],
    "a call that was lost and happened": [put("x", 0, inf, answer=Answer.NONE), read("x", 5, 6, "b")],
    "a call that was lost and happened late": [
        put("x", 0, inf, answer=Answer.NONE),
        read(None, 1, 2),
        put("y", 3, 4),
        remove(5, 6),
        read("x", 7, 8),
    ],
    "a call that was lost and never happened": [
        remove(1, inf, answer=Answer.NONE),
        put("x", 0, 1),
        read("x", 5, 6),
    ],
}
BAD: Final = {
    "lost": [put("x", 0, 1), read(None, 2, 3)],
    "something where nothing is": [put("x", 0, 1), remove(2, 3), read(ANY, 4, 5)],
    "from nowhere": [put("x", 0, 1), read("y", 2, 3)],
    "made twice": [put("x", 0, 1), put("y", 2, 3)],
    "refused by nothing": [put("y", 2, 3, answer=Answer.REFUSED)],
    "back after it was gone": [put("x", 0, 1), remove(2, 3), read("x", 4, 5)],
    "back after it was seen to be gone": [
        put("x", 0, 1),
        read("x", 0, 1, "b"),
        remove(2, 3),
        read(None, 4, 5, "b"),
        read("x", 6, 7, "b"),
    ],
    "seen before it was put": [read("x", 0, 1, "b"), put("x", 2, 3)],
    "two of them at once": [put("x", 0, 9), put("y", 0, 9), read("x", 10, 11), read("y", 10, 11)],
    "a node that forgets": [
        *(put("x", 0, 1), remove(2, 3), put("y", 4, 5)),
        *(read("y", 5.5, 5.6, "b"), read("x", 6, 7, "b")),
    ],
    "a call that happened twice": [
        put("x", 0, inf, answer=Answer.NONE),
        read("x", 1, 2),
        remove(3, 4),
        read(None, 5, 6),
        read("x", 7, 8),
    ],
}


def simulated(rng: random.Random, count: int) -> list[Operation]:
    """Simulate calls of three nodes as a cluster answers them: copies lag, and answers get lost."""
    states: list[State] = [None]
    copies = dict.fromkeys("abc", 0)
    free = dict.fromkeys("abc", 0.0)
    found, now = [], 0.0
    for number in range(count):
        node = rng.choice("abc")
        # Each node asks one thing at a time; its calls overlap those of others.
        now = max(now + rng.random() * 0.3, free[node] + 1e-6)
        ended = free[node] = now + rng.random()
        kind, value = rng.choice(list(Kind)), f"v{number}"
        copies[node] = rng.randint(copies[node], len(states) - 1)
        old = states[copies[node]]
        answer = Answer.DONE
        if kind is Kind.READ:
            value = old
        elif kind is Kind.PUT and old is not None:
            answer = Answer.REFUSED
        elif (kind is Kind.PUT) == (states[-1] is None):
            states.append(value if kind is Kind.PUT else None)
            copies[node] = len(states) - 1
        elif kind is Kind.PUT:
            answer, copies[node] = Answer.REFUSED, len(states) - 1
        else:
            copies[node] = len(states) - 1
        value = None if kind is Kind.REMOVE else value
        lost = kind is not Kind.READ and rng.random() < 0.1
        found.append(
            Operation(kind, node, value, now, inf if lost else ended, Answer.NONE if lost else answer)
        )
    return found
