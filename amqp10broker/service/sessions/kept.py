"""Links that are kept beyond their sessions: part 2, sections 2.6.1 and 2.6.13; part 3, section 3.5.

A link whose client asked for that, and was granted it, is here from its attach to its end: it ends when it is
closed, or when it has been suspended for as long as was granted. It has an address of its own among those who
ask queues, so that what it has there outlives its session: while it is attached, what queues say goes to its
session; while it is suspended, the link takes it itself. What is kept of each kind: `kept_publisher`,
`kept_consumer`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.amqp10.encoder import encode
from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import (
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
    decode_composite,
)
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.config import Config
from amqp10broker.errors import NotFound
from amqp10broker.management.snapshot import SuspendedLinkView
from amqp10broker.queues.commands import Command, PeerId, ReplyTo
from amqp10broker.queues.effects import Answer, Confirmed, Effect, QueueDeleted, Rejected, Unconfirmed
from amqp10broker.service.mail import LinkStolen, SessionLetter

Mail = list[tuple[QueueHandle, Command]]
Tell = Callable[[SessionLetter], object]
"""Puts a letter into the mailbox of a session."""

CONTENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of messages that the links of one user may keep to send them again."""

VIEWS_MAX: Final = 100
"""Suspended links that are shown at one time."""

FORMAT: Final = 1
"""Of what a restart is told of a link."""

LABEL: Final = "kept"
"""Of kept links, where people read who has something at a queue."""


class Key(NamedTuple):
    """What a link is known by: the client says who it is, and only for its user and virtual host."""

    vhost: str
    user: str
    container: str
    name: str
    consumes: bool


class Terms(NamedTuple):
    """How long a link is kept, and what of it survives a restart of the broker."""

    policy: Symbol
    timeout_s: int
    durable: int = TerminusDurability.NONE

    def in_terminus(self) -> dict[str, Any]:
        """As the answer to the attach says it."""
        return {"durable": self.durable, "expiry_policy": self.policy, "timeout": self.timeout_s}


class Survivor(NamedTuple):
    """What a restart knows of a link (`Kept.document`)."""

    key: Key
    terms: Terms
    deadline_ms: int | None
    terminus: Source | Target
    account: bool = False


def survivor(document: bytes) -> Survivor:
    """Read it again.

    Raises:
        ValueError: it cannot be understood.
    """
    facts, _, terminus = document.partition(b"\n")
    version, *rest = json.loads(facts)
    if version != FORMAT:
        raise ValueError(f"format {version} of a kept link is not known")
    vhost, user, container, name, consumes, policy, timeout_s, durable, deadline_ms, *more = rest
    found, _ = decode_composite(terminus)
    if not isinstance(found, Source | Target):
        raise ValueError(f"{found.NAME} is no terminus")
    key = Key(vhost, user, container, name, consumes)
    # Nothing more was said of the first links of this format.
    return Survivor(key, Terms(Symbol(policy), timeout_s, durable), deadline_ms, found, any(more))


class Records(Protocol):
    """What of links survives a restart: `persistence.kept_links.KeptLinksInJournal`."""

    def put(self, number: int, document: bytes) -> None:
        """Keep a link of this number, or what is said of it now."""

    def take(self, number: int, tags: Sequence[bytes]) -> None:
        """Queues have deliveries of these tags, with this record or not at all."""

    def settle(self, number: int, tags: Iterable[bytes]) -> None:
        """These are forgotten, as far as they are there."""

    def end(self, number: int) -> None:
        """The link is over, if it is there."""

    def found(self) -> Iterable[tuple[int, bytes, Sequence[bytes]]]:
        """Number, document and tags of each, as the start found them."""


def terms_for(terminus: Source | Target, config: Config) -> Terms | None:
    """What is granted to who asks for a link to be kept; None: it did not ask.

    A timeout beyond the largest that is granted is lowered to it. So is "never", where there is a largest;
    then the timer starts when the connection closes.
    """
    most = config.suspended_link_timeout_max_s
    policy = terminus.expiry_policy
    if policy == TerminusExpiryPolicy.NEVER:
        return Terms(TerminusExpiryPolicy.CONNECTION_CLOSE, most) if most else Terms(policy, 0)
    if not terminus.timeout and policy != TerminusExpiryPolicy.CONNECTION_CLOSE:
        return None
    return Terms(policy, min(terminus.timeout, most) if most else terminus.timeout)


class Host(Protocol):
    """What the registry asks of the broker around it."""

    def open(self, label: str, box: Kept) -> ReplyTo:
        """An address for a link; what queues answer there goes into the box."""

    def close(self, reply_to: ReplyTo) -> None:
        """The link is over."""

    def post(self, mail: Mail) -> None:
        """Put letters to queues."""

    def now_ms(self) -> int:
        """The time of day."""

    def timer_started(self) -> None:
        """`KeptLinks.deadline_ms` may be sooner than it was."""

    def has_account(self, user: str) -> bool:
        """Whether the catalog has this user, who is over when it has no more; a token's user it never had."""


class Kept(ABC):
    """One link.

    Attributes:
        key: what it is known by.
        account: the catalog had its user.
        terms: how long it is kept when it is suspended.
        reply_to: its address.
        link: its end in a session; None while it is suspended.
        tell: that session; likewise.
        stays: it is suspended when its end goes, and does not end with it.
        since_ms: when it was suspended; None while it is attached.
        deadline_ms: when it ends; None while it is attached, and until its timer has started.
        lingers: whose end starts the timer: of a session's links, or of a connection's.
        number: by which people name it; 0 before it is among `KeptLinks`.
        revoked: nothing of it outlives its end any more, whatever was granted.
        records: what of it survives a restart; None: nothing.
    """

    __slots__ = (
        "_claims",
        "account",
        "deadline_ms",
        "key",
        "lingers",
        "link",
        "number",
        "records",
        "reply_to",
        "revoked",
        "since_ms",
        "stays",
        "tell",
        "terms",
    )

    def __init__(self, key: Key, host: Host) -> None:
        self.key = key
        self.account = host.has_account(key.user)
        self.terms = Terms(TerminusExpiryPolicy.LINK_DETACH, 0)
        self.reply_to = host.open(LABEL, self)
        self.link: SenderLink | ReceiverLink | None = None
        self.tell: Tell | None = None
        self.stays = False
        self.since_ms: int | None = None
        self.deadline_ms: int | None = None
        self.lingers: object = None
        self.number = 0
        self.revoked = False
        self.records: Records | None = None
        self._claims: list[Callable[[], object]] = []

    def put(self, letter: list[Effect]) -> bool:
        """What queues say for the link: see `askers.EffectBox`."""
        if self.tell is not None:
            return bool(self.tell(letter))
        for effect in letter:
            self.take(effect)
        return True

    def outlives(self, *, lost: bool) -> bool:
        """Whether it is suspended when its end goes.

        Args:
            lost: with its session or connection.
        """
        return (lost or self.stays) and not self.revoked

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """Deliveries that are kept of it."""

    @property
    @abstractmethod
    def terminus(self) -> Source | Target:
        """As the client attached it."""

    def document(self) -> bytes:
        """What a restart must know of it: see `restored`."""
        facts = [FORMAT, *self.key, *self.terms, self.deadline_ms, self.account]
        return json.dumps(facts).encode() + b"\n" + encode(self.terminus)

    def write(self) -> None:
        """Have it survive a restart as it is now, if it is to."""
        if self.records is not None:
            self.records.put(self.number, self.document())

    @abstractmethod
    def take(self, effect: Effect) -> None:
        """A queue says something for a link that is suspended, or for an end that it had before."""

    @abstractmethod
    def give_up(self) -> Mail:
        """It ends: what queues are told if it was suspended."""

    def claim(self, then: Callable[[], object]) -> None:
        """Another session has an attach of it: its end of now is stolen, and `then` called when that is over.

        Must be attached.
        """
        assert self.tell is not None
        assert self.link is not None
        self._claims.append(then)
        self.tell(LinkStolen(self.link))

    def free(self) -> None:
        """It has no end any more: whoever waits for that goes on."""
        claims, self._claims = self._claims, []
        for then in claims:
            then()


class KeptLinks:
    """All of a broker, suspended or attached.

    Attributes:
        host: the broker.
        records: what of them survives a restart; None: nothing can.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.records: Records | None = None
        self._links: dict[Key, Kept] = {}
        self._by_peer: dict[PeerId, Kept] = {}
        self._of_user: Counter[str] = Counter()
        self._bytes_of_user: Counter[str] = Counter()
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._links.values())

    def find(self, key: Key) -> Kept | None:
        """The link of this key, if it is kept."""
        return self._links.get(key)

    def of(self, effect: Effect) -> Kept | None:
        """The kept link for which a queue says something."""
        match effect:
            case Confirmed() | Unconfirmed() | Rejected():
                peer = effect.publisher.reply_to
            case QueueDeleted():
                peer = effect.ref.reply_to
            case Answer():
                return None
            case _:
                peer = effect.consumer.reply_to
        return self._by_peer.get(peer)

    def has_room(self, key: Key, most: int) -> bool:
        """Whether a link may be kept for its user, who may have so many."""
        return key in self._links or self._of_user[key.user] < most

    def retain(self, user: str, size: int) -> bool:
        """Whether a message of so many bytes may be kept for a user; it counts then."""
        fits = self._bytes_of_user[user] + size <= CONTENT_BYTES_MAX
        if fits:
            self._bytes_of_user[user] += size
        return fits

    def release(self, user: str, size: int) -> None:
        """So many bytes are kept no more."""
        self._bytes_of_user[user] -= size
        if not self._bytes_of_user[user]:
            del self._bytes_of_user[user]

    def add(self, kept: Kept, number: int | None = None) -> None:
        """Keep one more; there is none of its key.

        Args:
            kept: which one.
            number: that it had before a restart.
        """
        assert kept.key not in self._links
        kept.number = self._last_number + 1 if number is None else number
        self._last_number = max(self._last_number, kept.number)
        self._links[kept.key] = kept
        self._by_peer[kept.reply_to.id] = kept
        self._of_user[kept.key.user] += 1

    def attach(self, kept: Kept, terms: Terms, link: SenderLink | ReceiverLink, tell: Tell) -> None:
        """It has an end in a session from now on."""
        kept.terms, kept.link, kept.tell, kept.stays = terms, link, tell, False
        kept.since_ms = kept.deadline_ms = kept.lingers = None
        before, kept.records = kept.records, self.records if terms.durable else None
        if kept.records is not None:
            kept.write()
        elif before is not None:
            before.end(kept.number)

    def restore(self, kept: Kept, number: int, terms: Terms, deadline_ms: int | None) -> None:
        """Keep one that has survived a restart, which has ended its connection if that had not ended before.

        Args:
            kept: suspended.
            number: that it had.
            terms: that it had been granted.
            deadline_ms: when it ends, if its timer ran.
        """
        self.add(kept, number)
        kept.terms, kept.records = terms, self.records
        kept.since_ms = self.host.now_ms()
        if deadline_ms is None:
            self._start(kept)
        else:
            kept.deadline_ms = deadline_ms
            self.host.timer_started()

    def suspend(self, kept: Kept, lingers: object) -> None:
        """Its end has gone.

        Args:
            kept: which one.
            lingers: whose end starts its timer, see `let_run`; None: it starts now.
        """
        kept.link = kept.tell = None
        kept.since_ms = self.host.now_ms()
        kept.lingers = lingers
        if lingers is None:
            self._start(kept)
        kept.free()

    def let_run(self, lingers: object, to: object = None) -> None:
        """A session's links, or a connection's, are over: start the timers of those that waited for it.

        Args:
            lingers: as at `suspend`.
            to: what those wait for now whose policy is connection-close; None: nothing.
        """
        for kept in self._links.values():
            if kept.lingers is not lingers or kept.link is not None:
                continue
            if to is not None and kept.terms.policy == TerminusExpiryPolicy.CONNECTION_CLOSE:
                kept.lingers = to
            else:
                kept.lingers = None
                self._start(kept)

    def _start(self, kept: Kept) -> None:
        if kept.terms.policy == TerminusExpiryPolicy.NEVER:
            return
        kept.deadline_ms = self.host.now_ms() + kept.terms.timeout_s * 1000
        kept.write()
        self.host.timer_started()

    def end(self, kept: Kept) -> Mail:
        """It is over; returns what queues are to be told if it was suspended."""
        if self._links.get(kept.key) is not kept:
            return []
        del self._links[kept.key]
        del self._by_peer[kept.reply_to.id]
        self._of_user[kept.key.user] -= 1
        if not self._of_user[kept.key.user]:
            del self._of_user[kept.key.user]
        attached, mail = kept.link is not None, kept.give_up()
        kept.link = kept.tell = None
        self._forget_records(kept)
        self.host.close(kept.reply_to)
        kept.free()
        return [] if attached else mail

    def revoke(self, *, user: str | None = None, vhost: str | None = None) -> None:
        """A user, or a virtual host, is gone: its links are nobody's, whoever is called the same later.

        Those that are attached go with their ends.
        """
        for kept in list(self):
            if user not in (None, kept.key.user) or vhost not in (None, kept.key.vhost):
                continue
            if kept.link is None:
                self.host.post(self.end(kept))
            else:
                kept.revoked = True
                self._forget_records(kept)

    def end_suspended(self, number: int) -> SuspendedLinkView:
        """End one before its time: what is unsettled gets the default outcome; as it was shown until then.

        Raises:
            NotFound: none of this number is suspended.
        """
        for kept in self:
            if kept.number == number and kept.link is None:
                view = self._view(kept)
                self.host.post(self.end(kept))
                return view
        raise NotFound(f"suspended link {number}", f"no link of number {number} is suspended")

    @staticmethod
    def _forget_records(kept: Kept) -> None:
        if kept.records is not None:
            kept.records.end(kept.number)
            kept.records = None

    @property
    def deadline_ms(self) -> int | None:
        """When the next one ends; None: no timer runs."""
        return min((each.deadline_ms for each in self if each.deadline_ms is not None), default=None)

    def suspended_views(self, most: int | None = VIEWS_MAX) -> tuple[SuspendedLinkView, ...]:
        """What doors show of those that are suspended, the first ones; None: all of them."""
        return tuple(map(self._view, islice((each for each in self if each.link is None), most)))

    def _view(self, kept: Kept) -> SuspendedLinkView:
        now, since, due = self.host.now_ms(), kept.since_ms, kept.deadline_ms
        return SuspendedLinkView(
            link=kept.number,
            name=kept.key.name,
            container_id=kept.key.container,
            user=kept.key.user,
            vhost=kept.key.vhost,
            role="receiver" if kept.key.consumes else "sender",
            unsettled=kept.unsettled,
            age_s=(now - (since or now)) / 1000,
            left_s=None if due is None else (due - now) / 1000,
        )

    def expire(self) -> None:
        """End those whose time is over."""
        now = self.host.now_ms()
        due = [each for each in self if each.deadline_ms is not None and each.deadline_ms <= now]
        for kept in due:
            self.host.post(self.end(kept))
