"""Links that survive the end of their session: part 2, sections 2.6.1 and 2.6.13; part 3, section 3.5.

Such a link has its own reply address. Effects are passed to the session while the link is attached, and to
the link itself while it is suspended.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotFound
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.operations.snapshot import SuspendedLinkView
from amqp10broker.protocols.amqp10.delivery import (
    UNSETTLED_ENTRIES_MAX,
    Parts,
    State,
    resume_as_receiver,
    unsettled_map,
)
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpDeliveryError, AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink, delivery_tag
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Rejected,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
    decode_composite,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome, to_error
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import (
    ActiveChanged,
    Answer,
    Confirmed,
    ConsumerRef,
    DeliveryOutcome,
    Effect,
    PeerId,
    PublisherRef,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    ReplyTo,
    Settle,
    Settled,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
    Unsubscribe,
)
from amqp10broker.queues.journal import ResumableLinksInJournal
from amqp10broker.sessions.messages import LinkStolen, ToSession

if TYPE_CHECKING:
    from amqp10broker.sessions.credit import QueueCredit


CONTENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of messages that the links of one user may hold for sending them again."""

VIEWS_MAX: Final = 100

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
    """How long a suspended link is held, and how much of it survives a restart."""

    policy: Symbol
    timeout_s: int
    durable: int = TerminusDurability.NONE

    def in_terminus(self) -> dict[str, Any]:
        return {"durable": self.durable, "expiry_policy": self.policy, "timeout": self.timeout_s}


class Survivor(NamedTuple):
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
    """Return the terms granted to a client that requests a link which survives; None if the client did not.
    Where a largest timeout is configured, it replaces "never", and runs from the close of the connection.
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
        """Open a reply address for a link; the answers of queues to it are put into `box`."""

    def close(self, reply_to: ReplyTo) -> None: ...

    def post(self, mail: list[QueueCommand]) -> None: ...

    def now_ms(self) -> int:
        """Return the time of day."""

    def timer_started(self) -> None:
        """Report that `ResumableLinks.deadline_ms` may be sooner than before."""

    def has_account(self, user: str) -> bool:
        """Return whether the catalog has this user. Users of tokens are never in it."""


class ResumableLink(ABC):
    """One link that survives its session.

    Attributes:
        account: whether the catalog had its user. If so, the link ends when the user is deleted.
        link, to_session: its present end; None while it is suspended.
        stays: it is suspended when its end is closed, instead of ending with it.
        deadline_ms: when it ends; None until its timer has started.
        lingers: the object at whose end the timer starts: a session's links, or a connection's.
        number: identifies it in the management API.
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
        """Return whether the link is suspended when its end goes. `lost`: with its session or connection."""
        return (lost or self.stays) and not self.revoked

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """The number of unsettled deliveries that it holds."""

    def document(self) -> bytes:
        facts = [FORMAT, *self.key, *self.terms, self.deadline_ms, self.account]
        return json.dumps(facts).encode() + b"\n" + encode(self.terminus)

    def write(self) -> None:
        if self.records is not None:
            self.records.put(self.number, self.document())

    @abstractmethod
    def take(self, effect: Effect) -> None:
        """Handle an effect for a suspended link, or for an earlier end of it."""

    @abstractmethod
    def give_up(self) -> list[QueueCommand]:
        """End the link; return the commands for its queues if it was suspended."""

    def claim(self, then: Callable[[], object]) -> None:
        """Detach the present end as stolen by another session, and call `then` when it has been detached."""
        assert self.to_session is not None
        assert self.link is not None
        self._claims.append(then)
        self.to_session(LinkStolen(self.link))

    def free(self) -> None:
        """Continue the attach that waits for the link to lose its present end."""
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
        """Reserve bytes for a message that is held for a user; return whether there is room."""
        fits = self._bytes_of_user[user] + size <= CONTENT_BYTES_MAX
        if fits:
            self._bytes_of_user[user] += size
        return fits

    def release(self, user: str, size: int) -> None:
        self._bytes_of_user[user] -= size
        if not self._bytes_of_user[user]:
            del self._bytes_of_user[user]

    def add(self, resumable: ResumableLink, number: int | None = None) -> None:
        """Add a link. `number`: the one that it had before a restart."""
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
        """Add a suspended link after a restart."""
        self.add(resumable, number)
        resumable.terms, resumable.records = terms, self.records
        resumable.since_ms = self.host.now_ms()
        if deadline_ms is None:
            self._start(resumable)
        else:
            resumable.deadline_ms = deadline_ms
            self.host.timer_started()

    def suspend(self, resumable: ResumableLink, lingers: object) -> None:
        """Suspend a link; the end of `lingers` starts its timer (`let_run`)."""
        resumable.link = resumable.to_session = None
        resumable.since_ms = self.host.now_ms()
        resumable.lingers = lingers
        if lingers is None:
            self._start(resumable)
        resumable.free()

    def let_run(self, lingers: object, to: object = None) -> None:
        """Start the timers of the links that waited for the end of `lingers`. `to`: the object for which
        links with the policy connection-close wait next.
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
        """End the links of a deleted user or virtual host, which a later one of that name must not get."""
        for resumable in list(self):
            if user not in (None, resumable.key.user) or vhost not in (None, resumable.key.vhost):
                continue
            if resumable.link is None:
                self.host.post(self.end(resumable))
            else:
                resumable.revoked = True
                self._forget_records(resumable)

    def end_suspended(self, number: int) -> SuspendedLinkView:
        """End a suspended link early, and return it. Raises `NotFound`."""
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
        return min((each.deadline_ms for each in self if each.deadline_ms is not None), default=None)

    def suspended_views(self, most: int | None = VIEWS_MAX) -> tuple[SuspendedLinkView, ...]:
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


@dataclass(eq=False, slots=True)
class Tally:
    """The outcomes of the deliveries of one publishing link. `left`: for deliveries routed to several queues,
    the number of queues that have not answered, and the outcome so far.
    """

    left: dict[int, tuple[int, Outcome]] = field(default_factory=dict)

    def expect(self, ids: Iterable[int], queues: int) -> None:
        """Expect answers of several queues for each of these deliveries."""
        for delivery_id in ids:
            self.left[delivery_id] = (queues, RELEASED)

    def count_down(self, ids: Sequence[int], outcome: Outcome) -> list[tuple[Outcome, Sequence[int]]]:
        """Count a queue's answer; return deliveries for which it was the last, with their outcomes."""
        if not self.left:
            return [(outcome, ids)]
        answered: list[tuple[Outcome, list[int]]] = []
        for delivery_id in ids:
            left, worst = self.left.get(delivery_id, (1, RELEASED))
            if isinstance(outcome, Rejected) or worst is RELEASED:
                worst = outcome
            if left > 1:
                self.left[delivery_id] = (left - 1, worst)
                continue
            self.left.pop(delivery_id, None)
            if not answered or answered[-1][0] is not worst:
                answered.append((worst, []))
            answered[-1][1].append(delivery_id)
        return [(worst, its_ids) for worst, its_ids in answered]


def refusal_of(effect: Unconfirmed | PublishRejected) -> AmqpDeliveryError | None:
    """Return why a queue does not accept messages; None if it was deleted, which releases them."""
    if isinstance(effect, PublishRejected):
        return AmqpDeliveryError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"queue '{effect.queue}' exceeded maximum length",
            {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("maxlen")},
        )
    if not effect.failed:
        return None
    return AmqpDeliveryError(
        Condition.PRECONDITION_FAILED,
        f"queue '{effect.queue}' is unavailable",
        {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("unavailable")},
    )


@dataclass(eq=False, slots=True)
class Entry:
    """One delivery. `number`: its delivery-id in the present session, if the client waits for the outcome
    there.
    """

    tag: bytes
    outcome: Outcome | None = None
    number: int | None = None
    posted: bool = False


TellLate = Callable[[Entry, int], None]
"""Sends the outcome of a delivery that came before the link was suspended."""


class ResumablePublisher(ResumableLink):
    """A link on which a client sends.

    `entries` has, by delivery-tag and in order of arrival, the deliveries that may be unsettled for the
    client, without partial ones and those of a transaction. With rcv-settle-mode second an entry stays until
    the client has settled; with first it stays until the client must have received the outcome.
    """

    def __init__(self, key: Key, host: Host, target: Target) -> None:
        super().__init__(key, host)
        self.terminus: Target = target
        self.entries: dict[bytes, Entry] = {}
        self.tell_late: TellLate | None = None
        self._most = 0
        # For each end that it had: deliveries that queues have not answered, by delivery-id.
        self._flights: dict[PublisherRef, tuple[Tally, dict[int, Entry]]] = {}
        # Outcomes that the present end has sent and the client has not settled, by delivery-id.
        self.told: dict[int, Entry] = {}

    @property
    def unsettled(self) -> int:
        return len(self.entries)

    # --- restart ---------------------------------------------------------------------------------------

    @property
    def keeps_unsettled(self) -> bool:
        """Whether unsettled deliveries survive a restart."""
        return self.records is not None and self.terms.durable == TerminusDurability.UNSETTLED_STATE

    def noted(self, ref: PublisherRef, ids: Sequence[int]) -> None:
        """Record deliveries in the group of records in which the queues get them."""
        flight = self._flights[ref][1]
        if self.records is not None:
            self.records.take(self.number, [flight[number].tag for number in ids if number in flight])

    def restore(self, tags: Iterable[bytes]) -> None:
        for tag in tags:
            entry = self.entries[tag] = Entry(tag)
            entry.outcome = ACCEPTED
            entry.posted = True

    def _forgotten(self, tags: Iterable[bytes]) -> None:
        if self.records is not None:
            self.records.settle(self.number, tags)

    # --- attaching and suspending -----------------------------------------------------------------

    def attached(self, tell_late: TellLate, ref: PublisherRef, tally: Tally) -> None:
        self.tell_late = tell_late
        self._flights[ref] = tally, {}

    def resume(self, attach: Attach) -> dict[bytes, State]:
        """Compare the client's unsettled map with the broker's; return the broker's for the answer."""
        ours: dict[bytes, State] = {tag: entry.outcome for tag, entry in self.entries.items()}
        plan = resume_as_receiver(ours, unsettled_map(attach), incomplete=attach.incomplete_unsettled)
        for tag in plan.settled:
            del self.entries[tag]
        self._forgotten(plan.settled)
        return plan.awaited | {tag: ours[tag] for tag in plan.open}

    def suspended(self, ref: PublisherRef) -> None:
        self.tell_late = None
        self.told.clear()
        for entry in self.entries.values():
            entry.number = None
        flight = self._flights[ref][1]
        for number, entry in list(flight.items()):
            if not entry.posted:
                # It waited for a declaration, or was refused with the session, so no queue has it.
                del flight[number]
                self.forget(entry)
        self._landed(ref)

    def _landed(self, ref: PublisherRef) -> None:
        if not self._flights[ref][1]:
            del self._flights[ref]

    # --- deliveries -------------------------------------------------------------------------------

    def began(
        self, ref: PublisherRef, ids: Sequence[int], tags: Sequence[bytes], *, second: bool, credit: int
    ) -> None:
        """Note new deliveries. Raises `AmqpLinkError` if a tag is in use, or too many are unsettled."""
        entries = self.entries
        most = UNSETTLED_ENTRIES_MAX + 2 * credit
        if len(entries) + len(ids) > most:
            raise AmqpLinkError(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"more than {most} deliveries of link '{self.key.name}' are not settled: "
                "settle those whose outcome is told",
            )
        flight = self._flights[ref][1]
        self._forgotten(tags)
        for number, tag in zip(ids, tags, strict=True):
            # With mode first an entry with an outcome is settled, so its tag may be used again.
            there = entries.get(tag)
            if there is not None and (second or there.outcome is None):
                raise AmqpLinkError(
                    Condition.NOT_ALLOWED,
                    f"delivery-tag 0x{tag.hex()} is that of another delivery of link '{self.key.name}' which "
                    "is not settled",
                )
            entries.pop(tag, None)
            entries[tag] = flight[number] = Entry(tag)

    def posted(self, ref: PublisherRef, ids: Sequence[int]) -> None:
        flight = self._flights[ref][1]
        for number in ids:
            if number in flight:
                flight[number].posted = True

    def decided(
        self, ref: PublisherRef, ids: Sequence[int], outcome: Outcome, *, second: bool, most: int
    ) -> None:
        """Note the outcome sent for deliveries. At most `most` of them stay."""
        flight = self._flights[ref][1]
        for number in ids:
            entry = flight.pop(number, None)
            if entry is not None:
                self._decide(entry, outcome)
                if second:
                    self.told[number] = entry
        # Deliveries sent before the limit was lowered may still be on their way.
        self._most = max(self._most, most)
        if not second:
            self._trim(self._most)

    def _decide(self, entry: Entry, outcome: Outcome) -> None:
        entry.outcome = outcome
        if outcome is not ACCEPTED:
            self._forgotten((entry.tag,))  # a delivery that no queue has taken is sent again after a restart

    def _trim(self, most: int) -> None:
        excess = len(self.entries) - most
        if excess > 0:
            old = [tag for tag, entry in self.entries.items() if entry.outcome is not None]
            for tag in old[:excess]:
                del self.entries[tag]
            self._forgotten(old[:excess])

    def settled(self, ids: Sequence[int]) -> None:
        told = (self.told.pop(number, None) for number in ids)
        self.forget(*(entry for entry in told if entry is not None))

    def forget(self, *over: Entry) -> None:
        tags = [entry.tag for entry in over if self.entries.get(entry.tag) is entry]
        for tag in tags:
            del self.entries[tag]
        self._forgotten(tags)

    # --- from queues ------------------------------------------------------------------------------

    def take(self, effect: Effect) -> None:
        if not isinstance(effect, Confirmed | Unconfirmed | PublishRejected):
            return
        tally, flight = self._flights.get(effect.publisher, (None, {}))
        if tally is None:
            return
        answer: Outcome = ACCEPTED
        if not isinstance(effect, Confirmed):
            refusal = refusal_of(effect)
            answer = RELEASED if refusal is None else Rejected(error=to_error(refusal))
        for outcome, ids in tally.count_down(effect.ids, answer):
            for number in ids:
                entry = flight.pop(number, None)
                if entry is None:
                    continue
                self._decide(entry, outcome)
                if self.tell_late is not None and entry.number is not None:
                    self.tell_late(entry, entry.number)
        self._landed(effect.publisher)

    def give_up(self) -> list[QueueCommand]:
        return []


class ResumableConsumer(ResumableLink):
    """A link on which a client receives.

    Its unsettled deliveries stay acquired: the consumer remains at its queue, but requests nothing. A
    delivery without a decision is sent again with its content, which is held within a limit for each user.
    Without content the delivery is aborted and returned to its queue.

    Attributes:
        held: the deliveries that the client has not settled, by key, in the order of delivery; None: without
            its content.
        credit: the credit of the end that was closed last.
        stale: the number of answers, still to come, to decisions of an earlier end.
    """

    def __init__(self, key: Key, links: ResumableLinks, source: Source) -> None:
        super().__init__(key, links.host)
        self._links = links
        self._bytes = 0
        self.terminus: Source = source
        self.ref: ConsumerRef = self.reply_to.consumer()
        self.held: dict[int, Parts | None] = {}
        self.credit: QueueCredit | None = None
        self.default_delivery_outcome = DeliveryOutcome.REQUEUE
        self.stale = 0
        self.active: bool | None = None

    @property
    def unsettled(self) -> int:
        return len(self.held)

    def ours(self) -> dict[bytes, int]:
        return {delivery_tag(key): key for key in self.held}

    # --- attached ---------------------------------------------------------------------------------

    def delivered(self, keys: Sequence[int], messages: Sequence[Parts]) -> None:
        for key, message in zip(keys, messages, strict=True):
            if key in self.held:
                self.forget((key,))  # it has been returned to its queue meanwhile
            size = len(message[0]) + len(message[1])
            retained = self._links.retain(self.key.user, size)
            self._bytes += size if retained else 0
            self.held[key] = message if retained else None

    def forget(self, keys: Iterable[int]) -> None:
        freed = 0
        for key in keys:
            message = self.held.pop(key, None)
            if message is not None:
                freed += len(message[0]) + len(message[1])
        self._free(freed)

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._links.release(self.key.user, size)

    def suspended(self, credit: QueueCredit, delivery_outcome: DeliveryOutcome, stale: int) -> None:
        """Take over the state of an end that was closed."""
        self.credit, self.default_delivery_outcome = credit, delivery_outcome
        self.stale += stale
        # An attach may not list more.
        excess = list(self.held)[UNSETTLED_ENTRIES_MAX:]
        if excess:
            self.forget(excess)
            credit.post(Settle(self.ref, excess, DeliveryOutcome.REQUEUE))

    # --- suspended --------------------------------------------------------------------------------

    def take(self, effect: Effect) -> None:
        match effect:
            case TimedOut():
                self.forget(effect.keys)
            case Settled():
                self.stale -= 1
            case ActiveChanged():
                self.active = effect.active
            case QueueDeleted() | QueueDown() | SubscribeRefused():
                self.credit = None  # the queue was deleted
                self._links.end(self)
            case _:
                return

    def give_up(self) -> list[QueueCommand]:
        self.held.clear()
        self._free(self._bytes)
        credit = self.credit
        if credit is None:
            return []
        delivery_outcome = self.default_delivery_outcome
        if delivery_outcome is DeliveryOutcome.REQUEUE and credit.kind.counts_lost_as_failed:
            delivery_outcome = DeliveryOutcome.REQUEUE_FAILED
        over: list[Any] = []
        return [(credit.queue.handle, Unsubscribe(self.ref, over, over, credit.seen, delivery_outcome))]
