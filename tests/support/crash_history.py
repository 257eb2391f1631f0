"""What clients know of a queue over many crashes, and what they may find in it after each.

A *life* is the time from one start of the broker to its end. While it lasts, clients note what they do, an
attempt before it is made and an answer when it has come. After the next start everything that a queue holds
is looked at, in order, and `QueueHistory.check` compares.

A message is named ``PUBLISHER:NUMBER``; the numbers of a publisher grow. Its body begins with the name and
goes on with bytes that follow from it, so that a body that was mixed up or cut is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final

SIZES: Final = (0, 10, 100, 100, 100, 700, 3000, 20_000)


def make_body(name: str) -> bytes:
    """Make the message's body: some have only the name, some take several pages."""
    digest = _digest(name)
    size = SIZES[digest[0] % len(SIZES)]
    return name.encode() + b" " + (digest * (size // 16 + 1))[:size]


def name_of(body: bytes) -> str:
    name = body.partition(b" ")[0].decode()
    assert body == make_body(name), f"the body of {name} is not what was published"
    return name


def is_persistent(name: str) -> bool:
    return _digest(name)[1] % 5 != 0


def _digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Kind:
    """A type of queue, and what it promises.

    Attributes:
        name: x-queue-type, unless the arguments say another.
        arguments: of the declaration.
        keeps_transient: messages that are not persistent survive too.
        keeps_all: no message goes when it is consumed.
        keeps_place: a requeued message goes back to where it was.
        settles_for_good: a settlement that was confirmed is never undone.
    """

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    keeps_transient: bool = False
    keeps_all: bool = False
    keeps_place: bool = True
    settles_for_good: bool = False


CLASSIC: Final = Kind("classic")
WRITTEN: Final = Kind("written", {"x-queue-type": "classic", "x-confirm-when": "written"})
"""A classic queue that confirms before it syncs."""
QUORUM: Final = Kind(
    "quorum",
    # To look at everything after each start must not be what ends a message.
    {"x-delivery-limit": 1_000_000},
    keeps_transient=True,
    keeps_place=False,
    settles_for_good=True,
)
STREAM: Final = Kind("stream", keeps_transient=True)


@dataclass
class QueueHistory:
    """One queue.

    Attributes:
        content: names, as they were found when somebody looked last.
        published: names given to the broker since then.
        confirmed: of these, what it has confirmed.
        touched: names whose removal was attempted since the last look.
        touching: of these, those of this life.
        settled: names whose removal the broker has confirmed, in any life.
        gone: names that were not there at some start after they had been published, or that had been
            removed when a broker was stopped in order.
        fresh: deliveries in this life without the flag ``redelivered``, by name.
        consumed: somebody may have given messages back since the last look.
    """

    name: str
    kind: Kind
    ordered: bool = True
    """Whether messages come in the order in which their publishers number them."""
    content: list[str] = field(default_factory=list)
    published: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    touching: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    fresh: Counter[str] = field(default_factory=Counter)
    consumed: bool = False

    def publish(self, name: str) -> None:
        """Record that a message of this name is about to be published."""
        self.published.add(name)
        # A rejection may be lost with the broker, and dead-letter the message in a later life.
        self.gone.discard(name)

    def touch(self, name: str) -> None:
        """Record that the removal of a message is about to be requested."""
        self.touched.add(name)
        self.touching.add(name)

    def stopped_in_order(self) -> None:
        """Record that clients left before the broker stopped: all that they requested is done."""
        self.gone |= self.touching

    def delivered(self, body: bytes, *, redelivered: bool) -> str:
        """Record a delivery to a client; return the message's name."""
        name = name_of(body)
        assert name in self.published or name in self.content, f"{self.name}: {name} appears from nowhere"
        if not redelivered:
            self.fresh[name] += 1
        return name

    def check(self, deliveries: Sequence[tuple[str, bool]]) -> None:
        """Compare with what is there after a restart, which begins the next life."""
        found = [name for name, _ in deliveries]
        faults = [*self._lost_and_found(found), *self._order(found)]
        assert not faults, f"queue '{self.name}':\n" + "\n".join(faults)
        self.gone |= (set(self.content) | self.published) - set(found)
        self.content = found
        self.published = set()
        self.confirmed = set()
        self.touched = set()
        self.fresh = Counter(name for name, redelivered in deliveries if not redelivered)
        self.consumed = False

    def new_life(self) -> None:
        self._check_flags()
        self.fresh = Counter()
        self.touching = set()

    def _check_flags(self) -> None:
        twice = [name for name, count in self.fresh.items() if count > 1]
        assert not twice, f"'{self.name}': delivered twice, and not marked as redelivered: {some(twice)}"

    def _lost_and_found(self, found: Sequence[str]) -> list[str]:
        here = set(found)
        known = set(self.content) | self.published
        safe = {name for name in self.confirmed if is_persistent(name) or self.kind.keeps_transient}
        transient = {name for name in self.published if not is_persistent(name)}
        faults = {
            "there twice": [name for name, count in Counter(found).items() if count > 1],
            "from nowhere": here - known,
            "back after they had gone": here & self.gone,
            "back after a confirmed settlement": here & self.settled if self.kind.settles_for_good else (),
            "confirmed and lost": safe - self.touched - here,
            "kept over a restart before, and lost": set(self.content) - self.touched - here,
            "not persistent, and there": () if self.kind.keeps_transient else here & transient,
        }
        return [f"{what}: {some(names)}" for what, names in faults.items() if names]

    def _order(self, found: Sequence[str]) -> list[str]:
        faults = []
        before = set(self.content)
        old = [name for name in found if name in before]
        new = [name for name in found if name not in before]
        if self.kind.keeps_place:
            place = {name: index for index, name in enumerate(self.content)}
            faults += _falling("of before", old, [place[name] for name in old])
            if old and new and found.index(new[0]) < len(old):
                faults.append(f"new messages stand before older ones: {new[0]}")
        if self.ordered and (self.kind.keeps_place or not self.consumed):
            for publisher in {_publisher(name) for name in new}:
                own = [name for name in new if _publisher(name) == publisher]
                faults += _falling(f"of {publisher}", own, [int(name.rpartition(":")[2]) for name in own])
        return faults


def _publisher(name: str) -> str:
    return name.rpartition(":")[0]


def _falling(whose: str, names: Sequence[str], places: Sequence[int]) -> list[str]:
    for at, (before, after) in enumerate(pairwise(places)):
        if after < before:
            return [f"out of order, messages {whose}: {names[at]} stands before {names[at + 1]}"]
    return []


def some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"{len(listed)}: {', '.join(listed[:8])}" + (" ..." if len(listed) > 8 else "")
