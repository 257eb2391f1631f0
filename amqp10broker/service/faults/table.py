"""Faults that a broker commits on request: which are on, whom they concern, and what they keep back.

Sessions and channels that commit them (`parts`) ask here when letters cross between them and queues, or
frames leave them. A broker makes such parts in test mode only, so that one which serves has no branch for any
of it (docs/adr/0093).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import count
from typing import Final

from amqp10broker.amqp091.errors import ReplyCode
from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.errors import BadRequest, NotFound
from amqp10broker.management.snapshot import FaultView
from amqp10broker.queues.commands import Command, PeerId, Publish, PublisherRef
from amqp10broker.queues.effects import Confirmed, Effect, Rejected, Unconfirmed

FAULTS_MAX: Final = 64


class FaultKind(StrEnum):
    """What the broker does wrong."""

    REJECT_PUBLISHES = "reject-publishes"
    RELEASE_PUBLISHES = "release-publishes"
    HOLD_PUBLISHES = "hold-publishes"
    HOLD_CONFIRMS = "hold-confirms"
    LIMIT_CREDIT = "limit-credit"
    IGNORE_DRAINS = "ignore-drains"
    REFUSE_ATTACHES = "refuse-attaches"
    DETACH = "detach"
    END = "end"
    CLOSE = "close"


OF_PUBLISHES: Final = frozenset(
    {
        FaultKind.REJECT_PUBLISHES,
        FaultKind.RELEASE_PUBLISHES,
        FaultKind.HOLD_PUBLISHES,
        FaultKind.HOLD_CONFIRMS,
    }
)
OF_FLOWS: Final = frozenset({FaultKind.LIMIT_CREDIT, FaultKind.IGNORE_DRAINS})
AT_ONCE: Final = frozenset({FaultKind.DETACH, FaultKind.END, FaultKind.CLOSE})
"""Committed once, on what is there."""


@dataclass(eq=False, slots=True)
class Fault:
    """One that is on.

    Attributes:
        number: of the fault.
        kind: what is done.
        vhost: where.
        queue: a shell pattern for the queue, or the address of a link; None: any.
        client: a shell pattern for the client's container-id or connection name; None: any.
        link: a shell pattern for the link's name; None: any.
        most: how many messages or attaches it concerns, or how much credit it leaves; None: all, or none.
        condition: that a client of AMQP 1.0 is told.
        code: that a client of AMQP 0-9-1 is told.
        text: that both are told.
        hits: how often it was committed: messages, flows, attaches, links, sessions, connections.
        mail: publishes that are held, for their queues.
        effects: confirms that are held, for those that published.
        watched: what was published since, whose confirms are held.
        flows: the last flow of each link that was held or changed, as the broker meant it.
        limits: up to which delivery-count each link was given credit.
        ahead: sessions and channels that one at once has not reached yet.
    """

    number: int
    kind: FaultKind
    vhost: str
    queue: str | None
    client: str | None
    link: str | None
    most: int | None
    condition: str
    code: ReplyCode
    text: str
    hits: int = 0
    mail: list[tuple[QueueHandle, Command]] = field(default_factory=list)
    effects: list[Confirmed] = field(default_factory=list)
    watched: set[tuple[PublisherRef, int]] = field(default_factory=set)
    flows: dict[SenderLink | ReceiverLink, tuple[PeerId, bytes]] = field(default_factory=dict)
    limits: dict[SenderLink | ReceiverLink, int] = field(default_factory=dict)
    ahead: set[PeerId] = field(default_factory=set)

    def concerns(self, client: str) -> bool:
        """Whether it is about a client."""
        return self.client is None or fnmatchcase(client, self.client)

    def matches(self, link: str | None, *queues: str | None) -> bool:
        """Whether it is about a link, None: a channel; to a queue by any of these names."""
        if self.link is not None and (link is None or not fnmatchcase(link, self.link)):
            return False
        return self.queue is None or any(fnmatchcase(each, self.queue) for each in queues if each)

    def take(self, wanted: int) -> int:
        """So many of these are its own: as far as it has not had as many as it is for."""
        taken = wanted if self.most is None else min(wanted, max(0, self.most - self.hits))
        self.hits += taken
        return taken

    @property
    def held(self) -> int:
        """Messages, confirms and flows that are kept back, sessions and channels that are still to come."""
        publishes = sum(len(each.ids) for _, each in self.mail if isinstance(each, Publish))
        return publishes + sum(len(each.ids) for each in self.effects) + len(self.flows) + len(self.ahead)

    def view(self) -> FaultView:
        """What doors show of it."""
        whom = self.vhost, self.queue, self.client, self.link
        return FaultView(self.number, str(self.kind), *whom, self.most, self.hits, self.held)


class Faults:
    """All faults of a broker."""

    def __init__(
        self, post: Callable[[Mapping[PeerId, list[Effect]]], None], client_of: Callable[[object], str]
    ) -> None:
        """Commit none yet.

        Args:
            post: puts effects into the mailboxes of those that they concern.
            client_of: tells what the client of a connection calls itself.
        """
        self._post = post
        self.client_of = client_of
        self._on: dict[int, Fault] = {}
        self._numbers = count(1)
        self._parts: dict[PeerId, str] = {}
        self._due: defaultdict[PeerId, list[tuple[SenderLink | ReceiverLink, bytes]]] = defaultdict(list)

    # --- who asks for them ------------------------------------------------------------------------

    def inject(
        self,
        kind: str,
        vhost: str,
        queue: str | None,
        client: str | None,
        link: str | None,
        most: int | None,
        condition: str,
        code: int,
        text: str,
    ) -> FaultView:
        """Commit a fault from now on, until `lift`.

        Raises:
            BadRequest: the code is none of AMQP 0-9-1, or there are too many faults.
        """
        if len(self._on) >= FAULTS_MAX:
            raise BadRequest("fault", f"{FAULTS_MAX} faults are on already: lift one with lift-fault")
        try:
            reply = ReplyCode(code)
        except ValueError:
            codes = ", ".join(str(each.value) for each in ReplyCode)
            raise BadRequest("fault", f"{code} is no reply code of AMQP 0-9-1, which are {codes}") from None
        number = next(self._numbers)
        whom = vhost, queue, client, link
        fault = self._on[number] = Fault(number, FaultKind(kind), *whom, most, condition, reply, text)
        if fault.kind in AT_ONCE:
            fault.ahead = {peer for peer, its_vhost in self._parts.items() if its_vhost == vhost}
            self._wake(fault.ahead)
        return fault.view()

    def lift(self, number: int) -> FaultView:
        """Commit it no more: what it has kept back goes on its way.

        Returns:
            What it was when it was lifted.

        Raises:
            NotFound: it is not on.
        """
        fault = self._on.pop(number, None)
        if fault is None:
            on = ", ".join(f"{each.number} ({each.kind})" for each in self._on.values()) or "none"
            raise NotFound(f"fault {number}", f"fault {number} is not on; {on} is")
        view = fault.view()
        for handle, command in fault.mail:
            handle.post(command)
        for effect in fault.effects:
            self._post({effect.publisher.reply_to: [effect]})
        for link, (peer, frame) in fault.flows.items():
            if peer in self._parts:
                self._due[peer].append((link, frame))
        self._wake(set(self._due))
        return view

    def views(self) -> list[FaultView]:
        """Those that are on."""
        return [fault.view() for fault in self._on.values()]

    def _wake(self, peers: set[PeerId]) -> None:
        """Have sessions and channels take a turn: nothing is told."""
        self._post({peer: [] for peer in peers})

    # --- who commits them -------------------------------------------------------------------------

    def join(self, peer: PeerId, vhost: str) -> None:
        """A session or channel begins: faults at once that are on are for others."""
        self._parts[peer] = vhost

    def at_once(self, peer: PeerId, client: str) -> list[Fault]:
        """What is to be committed in this turn of a session or channel."""
        reached = [fault for fault in self._on.values() if peer in fault.ahead]
        for fault in reached:
            fault.ahead.discard(peer)
        return [fault for fault in reached if fault.concerns(client)]

    def leave(self, peer: PeerId) -> None:
        """It is over."""
        for fault in self._on.values():
            fault.ahead.discard(peer)
        self._parts.pop(peer, None)
        self._due.pop(peer, None)

    def on(self, kinds: frozenset[FaultKind], vhost: str, client: str) -> list[Fault]:
        """Those of some kinds that concern a client."""
        return [
            fault
            for fault in self._on.values()
            if fault.kind in kinds and fault.vhost == vhost and fault.concerns(client)
        ]

    def take_due(self, peer: PeerId) -> list[bytes]:
        """Flows that were kept back, and are to be sent now."""
        return [frame for link, frame in self._due.pop(peer, ()) if link.attached]

    def published(
        self,
        faults: list[Fault],
        vhost: VirtualHost,
        link_of: Callable[[PublisherRef], str | None],
        mail: Sequence[tuple[QueueHandle, Command]],
    ) -> list[tuple[QueueHandle, Command]]:
        """What is left of a part's letters to queues."""
        left: list[tuple[QueueHandle, Command]] = []
        for handle, command in mail:
            if isinstance(command, Publish):
                queue = next((each.name for each in vhost if each.handle is handle), "")
                link = link_of(command.publisher)
                for fault in faults:
                    if command.ids and fault.matches(link, queue):
                        command = self._published(fault, queue, handle, command, of_channel=link is None)
                if not command.ids:
                    continue
            left.append((handle, command))
        return left

    def _published(
        self, fault: Fault, queue: str, handle: QueueHandle, publish: Publish, *, of_channel: bool
    ) -> Publish:
        """What a fault leaves of a publish."""
        taken = fault.take(len(publish.ids))
        ids, publisher, settled = publish.ids[:taken], publish.publisher, publish.settled
        if not taken:
            return publish
        match fault.kind:
            case FaultKind.HOLD_CONFIRMS:
                fault.watched.update((publisher, each) for each in ids)
                return publish
            case FaultKind.HOLD_PUBLISHES:
                fault.mail.append((handle, Publish(publisher, ids, publish.messages[:taken], settled)))
            case FaultKind.REJECT_PUBLISHES:
                self._post({publisher.reply_to: [Rejected(publisher, ids, settled, queue)]})
            case _:
                # A session releases what a queue does not take; to a channel the queue must have failed.
                released = Unconfirmed(publisher, ids, settled, failed=of_channel, queue=queue)
                self._post({publisher.reply_to: [released]})
        return Publish(publisher, publish.ids[taken:], publish.messages[taken:], settled)

    def confirmed(self, effects: Sequence[Effect]) -> list[Effect]:
        """What is left of effects for a part, when held confirms are taken out."""
        holding = [fault for fault in self._on.values() if fault.watched]
        if not holding:
            return list(effects)
        left: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Confirmed):
                ids = list(effect.ids)
                for fault in holding:
                    held = [each for each in ids if (effect.publisher, each) in fault.watched]
                    if held:
                        fault.effects.append(Confirmed(effect.publisher, held, effect.settled))
                    fault.watched.difference_update((effect.publisher, each) for each in held)
                    ids = [each for each in ids if each not in held]
                if not ids:
                    continue
                effect = Confirmed(effect.publisher, ids, effect.settled)
            left.append(effect)
        return left
