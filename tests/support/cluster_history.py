"""What clients know of one queue of a cluster, over any number of faults, and what that must come to.

Clients note what they are about to do, and an answer when it has come: a note of an attempt may be wrong, a
note of an answer never is. In the end everything that the queue still holds is looked at, and
`TotalQueue.faults` compares.

Each connection of a client is a *life* with a name of its own. A publisher names its messages
``LIFE:NUMBER``, with numbers that grow, and publishes none a second time: what was not confirmed in one life
is left alone, so that each name stands for one publish.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

from tests.support.crash_history import name_of, some

CONFIRMS_A_MINUTE: Final = 1000
"""A run with fewer shows nothing."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a client was given.

    Attributes:
        at: place in the order of all notes.
        life: of the consumer.
        name: of the message.
        redelivered: how it was marked.
        count: failed deliveries before, as the message says.
    """

    at: int
    life: str
    name: str
    redelivered: bool
    count: int


class TotalQueue:
    """One queue. Every method that notes may be called from any thread.

    Attributes:
        queue: its name.
        published: messages, with the place of the note.
        confirmed, refused: of these, what was answered.
        deliveries: in order of noting.
        removing: deliveries whose removal was asked for: (life, message), with the place of the note.
        given_back: deliveries that the client gave back: (life, message), with the places of the notes.
        removed: messages whose removal the broker has confirmed, with the place of the note.
        lost: lives whose connections were lost.
        content: what is there in the end, in order, and whether it is marked; None until `look`.
    """

    def __init__(self, queue: str, *, may_refuse: bool = False) -> None:
        self.queue = queue
        self.may_refuse = may_refuse
        self.published: dict[str, int] = {}
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.deliveries: list[Delivery] = []
        self.removing: dict[tuple[str, str], int] = {}
        self.given_back: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.removed: dict[str, int] = {}
        self.lost: set[str] = set()
        self.content: list[tuple[str, bool]] | None = None
        self._places = count()

    # --- notes ------------------------------------------------------------------------------------

    def publish(self, name: str) -> None:
        self.published[name] = next(self._places)

    def answer(self, name: str, *, accepted: bool) -> None:
        (self.confirmed if accepted else self.refused).add(name)

    def deliver(self, life: str, body: bytes, *, redelivered: bool, count: int = 0) -> str:
        """Record a delivery to a consumer; return the message's name."""
        name = name_of(body)
        self.deliveries.append(Delivery(next(self._places), life, name, redelivered, count))
        return name

    def remove(self, life: str, name: str) -> None:
        """Record that a consumer is about to settle a message finally."""
        self.removing[life, name] = next(self._places)

    def give_back(self, life: str, name: str) -> None:
        """Record that a consumer is about to requeue a message."""
        self.given_back[life, name].append(next(self._places))

    def was_removed(self, name: str) -> None:
        self.removed[name] = next(self._places)

    def lose(self, life: str) -> None:
        self.lost.add(life)

    def look(self, found: Iterable[tuple[str, bool]]) -> None:
        """Record all that the queue holds at the end of the run, in order, with its marks."""
        self.content = list(found)

    # --- what it comes to -------------------------------------------------------------------------

    @property
    def marked(self) -> set[str]:
        return {each.name for each in self.deliveries if each.redelivered}

    @property
    def wanted(self) -> set[str]:
        return self.confirmed - {name for _, name in self.removing}

    def require_load(self, seconds: float, leader_changes: int) -> None:
        """Fail if too little has happened for the run to show anything."""
        wanted = CONFIRMS_A_MINUTE * seconds / 60
        assert len(self.confirmed) >= wanted, (
            f"no run: '{self.queue}' confirmed {len(self.confirmed)} messages in {seconds:.1f} s, "
            f"{wanted:.0f} were wanted"
        )
        assert leader_changes > 0, f"no run: the leader of '{self.queue}' never changed"

    def check(self) -> None:
        found = list(self.faults())
        assert not found, f"queue '{self.queue}':\n" + "\n".join(found)

    def faults(self) -> Iterator[str]:
        assert self.content is not None, "look first"
        here = [name for name, _ in self.content]
        for what, names in self._sets(here).items():
            if names:
                yield f"{what}: {some(names)}"
        yield from self._order()
        yield from self._two_at_once()
        yield from self._counts()

    def _sets(self, here: Sequence[str]) -> dict[str, Iterable[str]]:
        given = {each.name for each in self.deliveries}
        fresh = Counter(each.name for each in self.deliveries if not each.redelivered)
        fresh.update(name for name, marked in self.content or () if not marked)
        # What a lost connection had brought may be noted long after it was given to another client.
        after = {
            each.name
            for each in self.deliveries
            if each.life not in self.lost and self.removed.get(each.name, each.at) < each.at
        }
        return {
            "confirmed and lost": self.wanted - set(here),
            "from nowhere": (given | set(here)) - self.published.keys(),
            "there twice": _more_than_once(Counter(here)),
            "given twice, and not marked as redelivered": _more_than_once(fresh),
            "back after a confirmed settlement": after | (set(here) & self.removed.keys()),
            "refused": () if self.may_refuse else self.refused,
            "refused and confirmed": self.refused & self.confirmed,
        }

    def _order(self) -> Iterator[str]:
        """A publisher's messages reach a consumer in order, except redelivered ones. Messages meant for a
        lost consumer, and never sent to it, return to their place without a mark, and may go to a
        consumer that has had later messages: then only the queue's content is checked.
        """
        publishers = {name.rpartition(":")[0] for name in self.published}
        streams: dict[tuple[str, str], list[int]] = defaultdict(list)
        for each in self.deliveries:
            if not each.redelivered and self.lost <= publishers:
                publisher, number = _numbered(each.name)
                streams[each.life, publisher].append(number)
        for name, marked in self.content or ():
            if not marked:
                publisher, number = _numbered(name)
                streams["what is there", publisher].append(number)
        for (life, publisher), numbers in streams.items():
            for before, after in pairwise(numbers):
                if after < before:
                    yield f"out of order for {life}: {publisher}:{before} came before {publisher}:{after}"
                    break

    def _two_at_once(self) -> Iterator[str]:
        """A consumer that settles a message was its only holder until then."""
        for name, deliveries in self._again():
            for first, second in pairwise(deliveries):
                settled = self.removing.get((first.life, name))
                whole = first.life != second.life and not {first.life, second.life} & self.lost
                back = any(first.at < at < second.at for at in self.given_back[first.life, name])
                if whole and not back and settled is not None and second.at < settled:
                    yield f"with two at once: {name} was with {first.life}, and given to {second.life}"

    def _counts(self) -> Iterator[str]:
        """The count of failed deliveries of a message never falls."""
        for name, deliveries in self._again():
            whole = [each for each in deliveries if each.life not in self.lost]
            for first, second in pairwise(whole):
                if second.count < first.count:
                    yield f"the count of {name} fell from {first.count} to {second.count}"

    def _again(self) -> Iterator[tuple[str, list[Delivery]]]:
        """Return the messages that were delivered more than once, with their deliveries."""
        times: dict[str, list[Delivery]] = defaultdict(list)
        for each in sorted(self.deliveries, key=lambda each: each.at):
            times[each.name].append(each)
        return ((name, deliveries) for name, deliveries in times.items() if len(deliveries) > 1)


def _numbered(name: str) -> tuple[str, int]:
    publisher, _, number = name.rpartition(":")
    return publisher, int(number)


def _more_than_once(counted: Counter[str]) -> list[str]:
    return [name for name, times in counted.items() if times > 1]
