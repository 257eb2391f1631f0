"""Faults that a broker commits on request: which are on, whom they concern, and what they keep back.

Sessions and channels that commit them (`parts`) ask here when letters cross between them and queues, or
frames leave them. A broker makes such parts in test mode only, so that one which serves has no branch for any
of it (docs/adr/0093).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import count
from typing import Final

from amqp10broker.amqp091.errors import ReplyCode
from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, NotFound
from amqp10broker.management.snapshot import FaultView
from amqp10broker.queues.commands import (
    Command,
    ConsumerRef,
    PeerId,
    Publish,
    PublisherRef,
    Settle,
    Verdict,
)
from amqp10broker.queues.effects import Confirmed, Effect, Rejected, Unconfirmed

FAULTS_MAX: Final = 64


class FaultKind(StrEnum):
    """What the broker does wrong."""

    REJECT_PUBLISHES = "reject-publishes"
    RELEASE_PUBLISHES = "release-publishes"
    MODIFY_PUBLISHES = "modify-publishes"
    RETURN_PUBLISHES = "return-publishes"
    HOLD_PUBLISHES = "hold-publishes"
    HOLD_CONFIRMS = "hold-confirms"
    REDELIVER = "redeliver"
    PAUSE_QUEUE = "pause-queue"
    LIMIT_CREDIT = "limit-credit"
    IGNORE_DRAINS = "ignore-drains"
    HOLD_ECHOES = "hold-echoes"
    WRONG_DELIVERY_COUNT = "wrong-delivery-count"
    CLOSE_WINDOW = "close-window"
    STOP_PUBLISHERS = "stop-publishers"
    FRAME_SIZE = "frame-size"
    HOLD_BYTES = "hold-bytes"
    SLOW_SOCKET = "slow-socket"
    CUT_FRAMES = "cut-frames"
    RESET_AFTER = "reset-after"
    STOP_HEARTBEATS = "stop-heartbeats"
    REFUSE_ATTACHES = "refuse-attaches"
    DETACH = "detach"
    END = "end"
    CLOSE = "close"


OF_MAIL: Final = frozenset(
    {
        FaultKind.REJECT_PUBLISHES,
        FaultKind.RELEASE_PUBLISHES,
        FaultKind.MODIFY_PUBLISHES,
        FaultKind.RETURN_PUBLISHES,
        FaultKind.HOLD_PUBLISHES,
        FaultKind.HOLD_CONFIRMS,
        FaultKind.REDELIVER,
        FaultKind.PAUSE_QUEUE,
    }
)
"""Of letters to queues."""
OF_FLOWS: Final = frozenset(
    {
        FaultKind.LIMIT_CREDIT,
        FaultKind.IGNORE_DRAINS,
        FaultKind.HOLD_ECHOES,
        FaultKind.WRONG_DELIVERY_COUNT,
    }
)
OF_STATES: Final = frozenset({FaultKind.CLOSE_WINDOW, FaultKind.STOP_PUBLISHERS})
"""Of what a session or channel is told when they begin, and again when they are lifted."""
OF_BYTES: Final = frozenset(
    {
        FaultKind.HOLD_BYTES,
        FaultKind.SLOW_SOCKET,
        FaultKind.CUT_FRAMES,
        FaultKind.RESET_AFTER,
        FaultKind.STOP_HEARTBEATS,
    }
)
"""Below sessions and channels: committed by the connection's stream (`tasks.faults`)."""
OF_CLIENTS: Final = OF_STATES | OF_BYTES | {FaultKind.FRAME_SIZE}
"""Of no queue or link: whole sessions, channels or connections."""
FRAME_BYTES_MIN: Final = 512
LEAST: Final = {
    FaultKind.FRAME_SIZE: FRAME_BYTES_MIN,
    FaultKind.SLOW_SOCKET: 100,
    FaultKind.CUT_FRAMES: 1,
    FaultKind.RESET_AFTER: 1,
}
"""What their count is at least, and if there is none."""
AT_ONCE: Final = frozenset({FaultKind.DETACH, FaultKind.END, FaultKind.CLOSE})
"""Committed once, on what is there."""


@dataclass(frozen=True, slots=True)
class Unwanted(Unconfirmed):
    """Messages that are not taken because a fault has them modified; a channel's are refused."""


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
        most: how many messages or attaches it concerns, how much credit it leaves, by how much a
            delivery-count is wrong, or one of `LEAST`; None: all, none, one, or the least.
        condition: that a client of AMQP 1.0 is told.
        code: that a client of AMQP 0-9-1 is told.
        text: that both are told.
        hits: how often it was committed: messages, letters, flows, attaches, links, sessions, connections,
            frames, reads and writes.
        mail: publishes and other letters that are held, for their queues.
        effects: confirms that are held, for those that published.
        watched: what was published since, whose confirms are held.
        flows: the last flow of each link that was held or changed, as the broker meant it.
        limits: up to which delivery-count each link was given credit.
        echoes: whose flow is to be answered: sessions, and their links or None for their own; whether the
            answer was held.
        frames: sent to each connection that is to be reset, by its number.
        bytes: of streams that are held.
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
    echoes: dict[tuple[PeerId, SenderLink | ReceiverLink | None], bool] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
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
        """Messages, letters, confirms, flows and bytes that are kept back, sessions and channels to come."""
        mail = sum(len(each.ids) if isinstance(each, Publish) else 1 for _, each in self.mail)
        flows = len(self.flows) + sum(self.echoes.values())
        effects = sum(len(each.ids) for each in self.effects)
        return mail + effects + flows + self.bytes + len(self.ahead)

    def view(self) -> FaultView:
        """What doors show of it."""
        whom = self.vhost, self.queue, self.client, self.link
        return FaultView(self.number, str(self.kind), *whom, self.most, self.hits, self.held)


class Faults:
    """All faults of a broker.

    Attributes:
        changed: called when one was injected or lifted.
    """

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
        self.changed: Callable[[], None] = lambda: None
        self._on: dict[int, Fault] = {}
        self._numbers = count(1)
        self._parts: dict[PeerId, str] = {}
        self._due: defaultdict[PeerId, list[tuple[SenderLink | ReceiverLink, bytes]]] = defaultdict(list)
        self._owed: defaultdict[PeerId, list[SenderLink | ReceiverLink | None]] = defaultdict(list)

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
            BadRequest: the code is none of AMQP 0-9-1, the fault is for no queue or link, the count is too
                small, or there are too many faults.
        """
        if len(self._on) >= FAULTS_MAX:
            raise BadRequest("fault", f"{FAULTS_MAX} faults are on already: lift one with lift-fault")
        try:
            reply = ReplyCode(code)
        except ValueError:
            codes = ", ".join(str(each.value) for each in ReplyCode)
            raise BadRequest("fault", f"{code} is no reply code of AMQP 0-9-1, which are {codes}") from None
        kept = FaultKind(kind)
        if kept in OF_CLIENTS and (queue is not None or link is not None):
            text = f"{kind} is for all of a client, whatever its queues and links: leave them out, or name it"
            raise BadRequest("fault", text)
        if kept in LEAST:
            most = LEAST[kept] if most is None else most
            if most < LEAST[kept]:
                raise BadRequest("fault", f"count {most} is too small for {kind}: give {LEAST[kept]} or more")
        number = next(self._numbers)
        whom = vhost, queue, client, link
        fault = self._on[number] = Fault(number, kept, *whom, most, condition, reply, text)
        if kept in AT_ONCE:
            fault.ahead = self._parts_of(vhost)
            self._wake(fault.ahead)
        elif kept in OF_STATES:
            self._wake(self._parts_of(vhost))
        self.changed()
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
        confirms: defaultdict[PeerId, list[Effect]] = defaultdict(list)
        for effect in fault.effects:
            confirms[effect.publisher.reply_to].append(effect)
        self._post(confirms)
        for link, (peer, frame) in fault.flows.items():
            if peer in self._parts:
                self._due[peer].append((link, frame))
        for (peer, asked), held in fault.echoes.items():
            if held and peer in self._parts:
                self._owed[peer].append(asked)
        self._wake({*self._due, *self._owed})
        if fault.kind in OF_STATES:
            self._wake(self._parts_of(fault.vhost))
        self.changed()
        return view

    def views(self) -> list[FaultView]:
        """Those that are on."""
        return [fault.view() for fault in self._on.values()]

    def _parts_of(self, vhost: str) -> set[PeerId]:
        return {peer for peer, its_vhost in self._parts.items() if its_vhost == vhost}

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
            fault.echoes = {key: held for key, held in fault.echoes.items() if key[0] != peer}
        self._parts.pop(peer, None)
        self._due.pop(peer, None)
        self._owed.pop(peer, None)

    def end(self, connection: int) -> None:
        """A connection is over."""
        for fault in self._on.values():
            fault.frames.pop(connection, None)

    def on(self, kinds: frozenset[FaultKind], vhost: str, client: str) -> list[Fault]:
        """Those of some kinds that concern a client."""
        return [
            fault
            for fault in self._on.values()
            if fault.kind in kinds and fault.vhost == vhost and fault.concerns(client)
        ]

    @property
    def any(self) -> bool:
        """Whether there is one at all."""
        return bool(self._on)

    def begins(self, kind: FaultKind, vhost: str, client: str) -> int | None:
        """A session or channel is under a fault of this kind from now on, if one is for its client.

        Returns:
            How large its frames may be, if it is that: the least of several; None: there is none.
        """
        faults = self.on(frozenset({kind}), vhost, client)
        for fault in faults:
            fault.hits += 1
        return min((each.most or 0 for each in faults), default=None)

    def take_due(self, peer: PeerId) -> list[bytes]:
        """Flows that were kept back, and are to be sent now."""
        return [frame for link, frame in self._due.pop(peer, ()) if link.attached]

    def take_owed(self, peer: PeerId) -> list[SenderLink | ReceiverLink | None]:
        """Links whose echo was kept back and is to be sent now; None: the session's own."""
        return [link for link in self._owed.pop(peer, ()) if link is None or link.attached]

    def posted(
        self,
        faults: list[Fault],
        vhost: VirtualHost,
        link_of: Callable[[PublisherRef | ConsumerRef], str | None],
        mail: Sequence[tuple[QueueHandle, Command]],
    ) -> list[tuple[QueueHandle, Command]]:
        """What is left of a part's letters to queues."""
        left: list[tuple[QueueHandle, Command]] = []
        for handle, command in mail:
            queue = next((each.name for each in vhost if each.handle is handle), "")
            ref = getattr(command, "publisher", None) or getattr(command, "consumer", None)
            link = None if ref is None else link_of(ref)
            commands: Sequence[Command] = (command,)
            for fault in faults:
                if fault.matches(link, queue):
                    commands = [
                        rest
                        for each in commands
                        for rest in self._posted(fault, queue, handle, each, of_channel=link is None)
                    ]
            left += [(handle, each) for each in commands]
        return left

    def _posted(
        self, fault: Fault, queue: str, handle: QueueHandle, command: Command, *, of_channel: bool
    ) -> Sequence[Command]:
        """What a fault leaves of a letter."""
        if fault.kind is FaultKind.PAUSE_QUEUE:
            if not queue:  # it answers by itself (direct reply-to), or was deleted meanwhile
                return (command,)
            fault.hits += 1
            fault.mail.append((handle, command))
            return ()
        if fault.kind is FaultKind.REDELIVER:
            return self._settled(fault, command) if isinstance(command, Settle) else (command,)
        if not isinstance(command, Publish):
            return (command,)
        if fault.kind is FaultKind.RETURN_PUBLISHES and of_channel:
            return (command,)  # by its own `Publishing`, which knows what is mandatory
        rest = self._published(fault, queue, handle, command, of_channel=of_channel)
        return (rest,) if rest.ids else ()

    def _settled(self, fault: Fault, settle: Settle) -> Sequence[Command]:
        """What the client has accepted goes back, as if the word had been lost."""
        if settle.verdict is not Verdict.ACCEPT or not (taken := fault.take(len(settle.keys))):
            return (settle,)
        back, rest = settle.keys[:taken], settle.keys[taken:]
        if not rest:
            return (replace(settle, keys=back, verdict=Verdict.REQUEUE_FAILED),)
        # One answer, if one is asked for.
        return (
            replace(settle, keys=back, verdict=Verdict.REQUEUE_FAILED, answer=False),
            replace(settle, keys=rest),
        )

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
            case FaultKind.MODIFY_PUBLISHES:
                unwanted = Unwanted(publisher, ids, settled, failed=True, queue=queue)
                self._post({publisher.reply_to: [unwanted]})
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
