"""Links that survive the end of their session: part 2, sections 2.6.1 and 2.6.13; part 3, section 3.5.

Such a link has a reply address of its own, so its state at queues outlives the session: effects go to the
session while the link is attached, and to the link itself while it is suspended. The state of each kind of
link is in `resumable_publisher` and `resumable_consumer`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from amqp10broker.config import Config
from amqp10broker.errors import NotFound
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.operations.snapshot import SuspendedLinkView
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import PeerId, ReplyTo
from amqp10broker.queues.durable_links import ResumableLinksInJournal
from amqp10broker.queues.effects import Answer, Confirmed, Effect, PublishRejected, QueueDeleted, Unconfirmed
from amqp10broker.sessions.messages import LinkStolen, ToSession

CONTENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of messages that the links of one user may hold in order to send them again."""

VIEWS_MAX: Final = 100
"""The most suspended links that are shown at one time."""

FORMAT: Final = 1
"""The version of the record that a restart reads."""

LABEL: Final = "kept"
"""The label of these links where the clients of a queue are listed."""


class Key(NamedTuple):
    """The identity of a link: its container and name, within its user and virtual host."""

    vhost: str
    user: str
    container: str
    name: str
    consumes: bool


class SuspensionTerms(NamedTuple):
    """How long a suspended link is held, and how much of it survives a restart of the broker."""

    policy: Symbol
    timeout_s: int
    durable: int = TerminusDurability.NONE

    def in_terminus(self) -> dict[str, Any]:
        return {"durable": self.durable, "expiry_policy": self.policy, "timeout": self.timeout_s}


class Survivor(NamedTuple):
    """The state of a link that a restart reads from `ResumableLink.document`."""

    key: Key
    terms: SuspensionTerms
    deadline_ms: int | None
    terminus: Source | Target
    account: bool = False


def survivor(document: bytes) -> Survivor:
    """Decode the document of a link. Raises `ValueError`."""
    facts, _, terminus = document.partition(b"\n")
    version, *rest = json.loads(facts)
    if version != FORMAT:
        raise ValueError(f"format {version} of a kept link is not known")
    vhost, user, container, name, consumes, policy, timeout_s, durable, deadline_ms, *more = rest
    found, _ = decode_composite(terminus)
    if not isinstance(found, Source | Target):
        raise ValueError(f"{found.NAME} is no terminus")
    key = Key(vhost, user, container, name, consumes)
    # The first documents of this format end here.
    return Survivor(key, SuspensionTerms(Symbol(policy), timeout_s, durable), deadline_ms, found, any(more))


def terms_for(terminus: Source | Target, config: Config) -> SuspensionTerms | None:
    """Return the terms granted to a client that requests a link which survives; None if it did not.

    A timeout beyond the largest allowed is lowered to it. So is "never" where a largest is configured; its
    timer then starts when the connection closes.
    """
    most = config.suspended_link_timeout_max_s
    policy = terminus.expiry_policy
    if policy == TerminusExpiryPolicy.NEVER:
        return (
            SuspensionTerms(TerminusExpiryPolicy.CONNECTION_CLOSE, most)
            if most
            else SuspensionTerms(policy, 0)
        )
    if not terminus.timeout and policy != TerminusExpiryPolicy.CONNECTION_CLOSE:
        return None
    return SuspensionTerms(policy, min(terminus.timeout, most) if most else terminus.timeout)


class Host(Protocol):
    """The services of the broker that `ResumableLinks` uses."""

    def open(self, label: str, box: ResumableLink) -> ReplyTo:
        """Open a reply address for a link; the answers of queues to it go into the box."""

    def close(self, reply_to: ReplyTo) -> None:
        """Close the reply address of a link."""

    def post(self, mail: list[QueueCommand]) -> None:
        """Send commands to their queues, in order."""

    def now_ms(self) -> int:
        """Return the time of day in ms."""

    def timer_started(self) -> None:
        """Report that `ResumableLinks.deadline_ms` may be sooner than before."""

    def has_account(self, user: str) -> bool:
        """Return whether the catalog has this user. Users of tokens are never in it."""


class ResumableLink(ABC):
    """One link that survives its session.

    Attributes:
        terminus: as the client attached it.
        account: whether the catalog had its user; if so, the link ends with that user.
        link: its end in a session; None while it is suspended.
        to_session: puts an event into its mailbox; None while it is suspended.
        stays: whether it is suspended when its end goes, instead of ending with it.
        deadline_ms: when it ends; None while it is attached, and until its timer has started.
        lingers: the object that starts the timer when it ends: a session's links, or a connection's.
        number: identifies it in the management API; 0 before it is among `ResumableLinks`.
    """

    terminus: Source | Target

    def __init__(self, key: Key, host: Host) -> None:
        self.key = key
        self.account = host.has_account(key.user)
        self.terms = SuspensionTerms(TerminusExpiryPolicy.LINK_DETACH, 0)
        self.reply_to = host.open(LABEL, self)
        self.link: SenderLink | ReceiverLink | None = None
        self.to_session: ToSession | None = None
        self.stays = False
        self.since_ms: int | None = None
        self.deadline_ms: int | None = None
        self.lingers: object = None
        self.number = 0
        self.revoked = False
        self.records: ResumableLinksInJournal | None = None
        self._claims: list[Callable[[], object]] = []

    def put(self, message: list[Effect]) -> bool:
        if self.to_session is not None:
            return bool(self.to_session(message))
        for effect in message:
            self.take(effect)
        return True

    def outlives(self, *, lost: bool) -> bool:
        """Return whether the link is suspended when its end goes; `lost`: with its session or connection."""
        return (lost or self.stays) and not self.revoked

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """The number of deliveries that it holds."""

    def document(self) -> bytes:
        """Encode the state that a restart needs, for `survivor`."""
        facts = [FORMAT, *self.key, *self.terms, self.deadline_ms, self.account]
        return json.dumps(facts).encode() + b"\n" + encode(self.terminus)

    def write(self) -> None:
        """Store the present state if the link survives a restart."""
        if self.records is not None:
            self.records.put(self.number, self.document())

    @abstractmethod
    def take(self, effect: Effect) -> None:
        """Handle an effect for a suspended link, or for an earlier end of it."""

    @abstractmethod
    def give_up(self) -> list[QueueCommand]:
        """End the link; return the commands for its queues if it was suspended."""

    def claim(self, then: Callable[[], object]) -> None:
        """Detach the present end as stolen by another session, and call `then` when it is gone."""
        assert self.to_session is not None
        assert self.link is not None
        self._claims.append(then)
        self.to_session(LinkStolen(self.link))

    def free(self) -> None:
        """Record that the link has no end any more, and continue the attach that waits for it."""
        claims, self._claims = self._claims, []
        for then in claims:
            then()


class ResumableLinks:
    """All links of a broker that survive their sessions, suspended or attached."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.records: ResumableLinksInJournal | None = None
        self._links: dict[Key, ResumableLink] = {}
        self._by_peer: dict[PeerId, ResumableLink] = {}
        self._of_user: Counter[str] = Counter()
        self._bytes_of_user: Counter[str] = Counter()
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[ResumableLink]:
        return iter(self._links.values())

    def find(self, key: Key) -> ResumableLink | None:
        return self._links.get(key)

    def of(self, effect: Effect) -> ResumableLink | None:
        """Return the link to which the effect of a queue is addressed."""
        match effect:
            case Confirmed() | Unconfirmed() | PublishRejected():
                peer = effect.publisher.reply_to
            case QueueDeleted():
                peer = effect.ref.reply_to
            case Answer():
                return None
            case _:
                peer = effect.consumer.reply_to
        return self._by_peer.get(peer)

    def has_room(self, key: Key, most: int) -> bool:
        return key in self._links or self._of_user[key.user] < most

    def retain(self, user: str, size: int) -> bool:
        """Reserve bytes for a message that is held for a user; return whether there is room for it."""
        fits = self._bytes_of_user[user] + size <= CONTENT_BYTES_MAX
        if fits:
            self._bytes_of_user[user] += size
        return fits

    def release(self, user: str, size: int) -> None:
        """Return bytes reserved by `retain`."""
        self._bytes_of_user[user] -= size
        if not self._bytes_of_user[user]:
            del self._bytes_of_user[user]

    def add(self, resumable: ResumableLink, number: int | None = None) -> None:
        """Add a link with a new key; `number` is the one that it had before a restart."""
        assert resumable.key not in self._links
        resumable.number = self._last_number + 1 if number is None else number
        self._last_number = max(self._last_number, resumable.number)
        self._links[resumable.key] = resumable
        self._by_peer[resumable.reply_to.id] = resumable
        self._of_user[resumable.key.user] += 1

    def attach(
        self,
        resumable: ResumableLink,
        terms: SuspensionTerms,
        link: SenderLink | ReceiverLink,
        to_session: ToSession,
    ) -> None:
        resumable.terms, resumable.link, resumable.to_session = terms, link, to_session
        resumable.stays = False
        resumable.since_ms = resumable.deadline_ms = resumable.lingers = None
        before, resumable.records = resumable.records, self.records if terms.durable else None
        if resumable.records is not None:
            resumable.write()
        elif before is not None:
            before.end(resumable.number)

    def restore(
        self, resumable: ResumableLink, number: int, terms: SuspensionTerms, deadline_ms: int | None
    ) -> None:
        """Add a suspended link after a restart; `deadline_ms` is None if its timer had not started."""
        self.add(resumable, number)
        resumable.terms, resumable.records = terms, self.records
        resumable.since_ms = self.host.now_ms()
        if deadline_ms is None:
            self._start(resumable)
        else:
            resumable.deadline_ms = deadline_ms
            self.host.timer_started()

    def suspend(self, resumable: ResumableLink, lingers: object) -> None:
        """Suspend a link; the end of `lingers` starts its timer (`let_run`), None starts it now."""
        resumable.link = resumable.to_session = None
        resumable.since_ms = self.host.now_ms()
        resumable.lingers = lingers
        if lingers is None:
            self._start(resumable)
        resumable.free()

    def let_run(self, lingers: object, to: object = None) -> None:
        """Start the timers of the links that waited for the end of a session's links or of a connection.
        `to`: the next object that links with the policy connection-close wait for; None starts their timers.
        """
        for resumable in self._links.values():
            if resumable.lingers is not lingers or resumable.link is not None:
                continue
            if to is not None and resumable.terms.policy == TerminusExpiryPolicy.CONNECTION_CLOSE:
                resumable.lingers = to
            else:
                resumable.lingers = None
                self._start(resumable)

    def _start(self, resumable: ResumableLink) -> None:
        if resumable.terms.policy == TerminusExpiryPolicy.NEVER:
            return
        resumable.deadline_ms = self.host.now_ms() + resumable.terms.timeout_s * 1000
        resumable.write()
        self.host.timer_started()

    def end(self, resumable: ResumableLink) -> list[QueueCommand]:
        if self._links.get(resumable.key) is not resumable:
            return []
        del self._links[resumable.key]
        del self._by_peer[resumable.reply_to.id]
        self._of_user[resumable.key.user] -= 1
        if not self._of_user[resumable.key.user]:
            del self._of_user[resumable.key.user]
        attached, mail = resumable.link is not None, resumable.give_up()
        resumable.link = resumable.to_session = None
        self._forget_records(resumable)
        self.host.close(resumable.reply_to)
        resumable.free()
        return [] if attached else mail

    def revoke(self, *, user: str | None = None, vhost: str | None = None) -> None:
        """End the links of a deleted user or virtual host: a later one of its name must not get them."""
        for resumable in list(self):
            if user not in (None, resumable.key.user) or vhost not in (None, resumable.key.vhost):
                continue
            if resumable.link is None:
                self.host.post(self.end(resumable))
            else:
                resumable.revoked = True
                self._forget_records(resumable)

    def end_suspended(self, number: int) -> SuspendedLinkView:
        """End a suspended link early; its unsettled deliveries get the default outcome. Returns the link as
        it was shown until now. Raises `NotFound` if no suspended link has this number.
        """
        for resumable in self:
            if resumable.number == number and resumable.link is None:
                view = self._view(resumable)
                self.host.post(self.end(resumable))
                return view
        raise NotFound(f"suspended link {number}", f"no link of number {number} is suspended")

    @staticmethod
    def _forget_records(resumable: ResumableLink) -> None:
        if resumable.records is not None:
            resumable.records.end(resumable.number)
            resumable.records = None

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the next link ends; None while no timer runs."""
        return min((each.deadline_ms for each in self if each.deadline_ms is not None), default=None)

    def suspended_views(self, most: int | None = VIEWS_MAX) -> tuple[SuspendedLinkView, ...]:
        """Return the first `most` suspended links for the management API; all if it is None."""
        return tuple(map(self._view, islice((each for each in self if each.link is None), most)))

    def _view(self, resumable: ResumableLink) -> SuspendedLinkView:
        now, since, due = self.host.now_ms(), resumable.since_ms, resumable.deadline_ms
        return SuspendedLinkView(
            link=resumable.number,
            name=resumable.key.name,
            container_id=resumable.key.container,
            user=resumable.key.user,
            vhost=resumable.key.vhost,
            role="receiver" if resumable.key.consumes else "sender",
            unsettled=resumable.unsettled,
            age_s=(now - (since or now)) / 1000,
            left_s=None if due is None else (due - now) / 1000,
        )

    def expire(self) -> None:
        now = self.host.now_ms()
        due = [each for each in self if each.deadline_ms is not None and each.deadline_ms <= now]
        for resumable in due:
            self.host.post(self.end(resumable))
