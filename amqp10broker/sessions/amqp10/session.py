"""The broker's side of one AMQP 1.0 session, in the steps of `sessions/context.py`.

A step takes frames and the effects of queues, and returns frames and commands for queues. The session drives
the engine (`protocols.amqp10.session.Session`) and dispatches its events to the owners of links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar, assert_never, cast

from amqp10broker.errors import RefusedError
from amqp10broker.metadata.plan import Decided
from amqp10broker.metadata.queue import DeclaredQueue, LastError
from amqp10broker.operations.node import Caller
from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.link import (
    DeliveriesReceived,
    DeliveriesSent,
    DeliveriesSettled,
    DeliveriesUpdated,
    DeliveryBegun,
    DeliveryResumed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkFlowed,
    MarkerReached,
    PumpEvent,
    ReceiverLink,
    SenderLink,
    SessionEnded,
    SessionEvent,
    TransferRun,
    by_link,
    handles_of,
)
from amqp10broker.protocols.amqp10.performatives import Attach, Begin, Coordinator
from amqp10broker.protocols.amqp10.session import Session, SessionState
from amqp10broker.protocols.connection import Unfinished
from amqp10broker.queues.commands import (
    ActiveChanged,
    Answer,
    Confirmed,
    CreditReply,
    Deliver,
    Effect,
    PublishRejected,
    QueueDeleted,
    QueueDown,
    RequestRef,
    Settled,
    Subscribed,
    SubscribeRefused,
    TimedOut,
    Unconfirmed,
)
from amqp10broker.routing.address import BadAddress, QueueAddress, parse
from amqp10broker.sessions.amqp10.attach import to_amqp_error
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.coordinator import CoordinatorLink as ControlLink
from amqp10broker.sessions.amqp10.link_owner import LinkOwners
from amqp10broker.sessions.amqp10.links import ClientLinks
from amqp10broker.sessions.amqp10.management import ManagementLinks, is_management
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.transactions import ConflictError
from amqp10broker.sessions.context import ClientLog, SessionContext, SessionEndpoint
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.messages import (
    AlarmChanged,
    Committed,
    ConfigChanged,
    Frames,
    LinkFree,
    LinkStolen,
    Notice,
    SessionMessage,
    Stop,
)

T = TypeVar("T")

IN_TURNS_MIN: Final = 4
"""The number of runs of transfers in one batch from which the session checks whether links are interleaved.
"""


class BrokerSession(SessionEndpoint):
    """One session of one client."""

    def __init__(
        self,
        channel: int,
        begin: Begin,
        context: SessionContext,
        *,
        frame_size_max: int,
        alarm: bool,
        unfinished: Unfinished | None = None,
    ) -> None:
        super().__init__(context.moment)
        self.context = context
        self.reply_to = context.reply_to
        flow = context.flow_for(None)
        self._unfinished = unfinished or Unfinished()
        self.session = Session(
            channel,
            incoming_window=flow.incoming_window,
            handle_max=context.config.link_max_per_session - 1,
            frame_size_max=frame_size_max,
            window_closed=alarm,
            unfinished=self._unfinished,
            on_fault=self._on_fault,
        )
        self.last_error: LastError | None = None
        self.session.receive_begin(channel, begin)
        self.session.begin()
        self.window_ms = self.alarm_ms = self.moment.ms
        self._window_open = True
        self._stopped = self.over = False
        self._note_window()
        self._owners: LinkOwners = {}
        self.links = ClientLinks(self.session, context, self._owners, self.to_queue, self.take_commands)
        # Links of a queue that this session deletes are detached after the answer: RabbitMQ's client for
        # Python interprets a detach before it as a failure of the request.
        self._deleted: list[QueueDeleted] = []
        # Attaches to addresses that do not exist, received before a declaration of this session is decided.
        self._early: list[LinkAttaching] = []
        self._control_links: list[ControlLink] = []
        self._management = ManagementLinks(
            self.session,
            self._owners,
            self._caller,
            self.to_queue,
            lambda: context.config.max_message_size_bytes,
            self.pump,
        )

    # --- input ------------------------------------------------------------------------------------

    def handle(self, message: SessionMessage) -> None:
        match message:
            case Frames():
                self.receive(message.items)
            case list():
                self.on_effects(message)
            case Decided():
                self.on_decided(message)
            case Notice.WRITER_READY:
                return
            case AlarmChanged():
                self.on_alarm(on=message.on)
            case ConfigChanged():
                self.context.config = message.config  # for later grants
                self.links.on_config()
            case Notice.ACCESS_CHANGED:
                self.links.on_access_changed()
                self._resume()
            case LinkStolen():
                self.links.on_stolen(message.link)
                self._resume()
            case LinkFree():
                self._on_free(message.link)
            case Committed():
                self._on_committed(message.ref)
            case Notice.TRANSACTIONS_DUE:
                self._end_overdue()
            case Stop():
                if message.tell:
                    self.end(message.error)
                self._stopped = True
            case _:
                assert_never(message)

    def receive(self, items: Sequence[object]) -> None:
        if len(items) >= IN_TURNS_MIN:
            items = self._by_link(items)
        self.session.receive_each(items, self._on_event)
        if self.session.held.by_remote:
            self._resume()
        self._note_window()
        if self._unfinished.held_bytes:
            for publisher in self.links.publishers.values():
                publisher.times.note_part(publisher.link.partial)

    def _by_link(self, items: Sequence[object]) -> Sequence[object]:
        # Group interleaved transfers by link where that cannot be observed: transfers on one link, or for one
        # queue, have an order. A run costs as much as some tens of messages, and the transfers of go-amqp's
        # senders alternate.
        handles = handles_of(items)
        if handles is None or 2 * len(handles) > len(items):
            return items
        session = self.session
        if session.output.tap is not None or session.held.by_remote or session.incoming.closed:
            return items
        queues: set[DeclaredQueue] = set()
        for handle in handles:
            link = session.links.by_remote.get(handle)
            owner = None if link is None else self._owners.get(link)
            queue = owner.only_queue if isinstance(owner, LinkPublisher) else None
            if queue is None or queue in queues:
                return items
            queues.add(queue)
        runs = cast("Sequence[TransferRun]", items)
        ids = [number for run in runs if not run.settled for number in run.delivery_ids]
        if len(set(ids)) < len(ids) or not session.inbound.unsettled.keys().isdisjoint(ids):
            return items  # a delivery-id in use ends the session, with the transfers of other links behind it
        return by_link(runs)

    def _resume(self) -> None:
        for link in list(self.session.held):
            if not self.links.waits(link):
                self.session.release(link, self._on_event)

    def _note_window(self) -> None:
        is_open = self.session.outgoing.remote_incoming_window > 0
        if is_open is not self._window_open:
            self._window_open = is_open
            if is_open:
                self.moment.measures.remote_window_zero.count(self.moment.ms - self.window_ms)
            self.window_ms = self.moment.ms

    def on_effects(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Confirmed():
                    publisher = self.links.publishers.get(effect.publisher)
                    if publisher is not None:
                        publisher.on_confirmed(effect.ids, settled=effect.settled)
                    else:
                        self.links.on_late(effect)
                case Deliver():
                    consumer = self.links.consumers.get(effect.consumer)
                    if consumer is not None:
                        consumer.on_deliver(effect)
                case CreditReply():
                    consumer = self.links.consumers.get(effect.consumer)
                    if consumer is not None:
                        consumer.on_reply(effect)
                case Unconfirmed() | PublishRejected():
                    publisher = self.links.publishers.get(effect.publisher)
                    if publisher is not None:
                        publisher.on_refused(effect)
                    else:
                        self.links.on_late(effect)
                case Settled() | TimedOut() | ActiveChanged():
                    if isinstance(effect, ActiveChanged) and self.links.answer_attach(effect.consumer):
                        self._resume()  # a flow that has come meanwhile counts for the answer
                    consumer = self.links.consumers.get(effect.consumer)
                    if consumer is not None:
                        consumer.on_effect(effect)
                    else:
                        self.links.on_late(effect)
                case QueueDeleted():
                    if self._management.busy:
                        self._deleted.append(effect)
                    else:
                        self.links.on_queue_deleted(effect)
                case Answer():
                    self._management.on_answer(effect)
                case SubscribeRefused():
                    self.links.on_refused(effect)
                case QueueDown():
                    self.links.on_queue_down(effect)
                case Subscribed():
                    if self.links.answer_attach(effect.consumer):
                        self._resume()
                case _:
                    assert_never(effect)
        if self.session.held.by_remote:
            self._resume()

    def handle_undelivered(self, message: SessionMessage) -> None:
        if isinstance(message, list):
            for effect in message:
                self.links.on_late(effect)

    def on_decided(self, decided: Decided) -> None:
        waiting = self.links.waiting.pop(decided.ref, None)
        if waiting is not None:
            self._tell(waiting.link, waiting.then, decided)
        else:
            try:
                self._management.on_decided(decided)
            except AmqpSessionError as error:
                # Answers to requests before the fault are sent before the end.
                self.pump(self.context.config.max_message_size_bytes)
                self._fail(error)
        if not self._undecided:
            early, self._early = self._early, []
            for event in early:
                if not self.session.ended:
                    self._on_attaching(event)
        self._resume()

    @property
    def _undecided(self) -> bool:
        return bool(self.links.waiting) or self._management.undecided is not None

    def _on_free(self, link: SenderLink | ReceiverLink) -> None:
        attach = self.links.claimed.pop(link, None)
        if attach is not None and not self.session.ended:
            self._on_attaching(LinkAttaching(link, attach))
            self._resume()

    def on_alarm(self, *, on: bool) -> None:
        """Hold publishers back while memory or disk is short."""
        if self.session.ended:
            return
        self.alarm_ms = self.moment.ms
        if on:
            self.session.incoming.close()
            self.links.tighten()
        else:
            self.session.incoming.reopen()

    # --- output -----------------------------------------------------------------------------------

    def pump(self, budget_bytes: int) -> int:
        written = 0
        session = self.session
        while session.outbound.turns:
            spent, events = session.pump(budget_bytes - written)
            written += spent
            if not events:
                break
            for event in events:
                self._on_pump_event(event)
        if self._deleted:
            deleted, self._deleted = self._deleted, []
            for effect in deleted:
                self.links.on_queue_deleted(effect)
            self._resume()
        self._note_window()
        self.over = self._stopped or session.state is SessionState.UNMAPPED
        return written

    @property
    def has_unsent(self) -> bool:
        return bool(self.session.outbound.turns)

    def take_output(self) -> Sequence[bytes | memoryview]:
        return self.session.take_output()

    @property
    def consumers(self) -> Iterable[LinkConsumer]:
        return self.links.consumers.values()

    @property
    def publishers(self) -> Iterable[LinkPublisher]:
        return self.links.publishers.values()

    def counted(self) -> ClientCounters:
        return self.links.counted()

    def end(self, error: AmqpError | None = None) -> None:
        self.close()
        if not self.session.ended:
            self.session.end(error)

    def close(self) -> None:
        self._early.clear()
        self.context.transactions.clear()
        self._control_links.clear()
        self.links.close()
        for effect in self._deleted:
            self.links.on_late(effect)
        self._deleted.clear()
        self._management.close()
        self._owners.clear()

    def release(self) -> None:
        del self.session.links, self.session, self.links, self._management

    # --- engine events ----------------------------------------------------------------------------

    def _on_event(self, event: SessionEvent) -> None:
        match event:
            case DeliveriesReceived():
                owner = self._owners.get(event.link)
                if owner is not None:
                    self._tell(event.link, owner.on_deliveries, event)
            case DeliveriesUpdated():
                owner = self._owners.get(event.link)
                if owner is not None:
                    self._tell(event.link, owner.on_updated, event)
            case LinkFlowed():
                owner = self._owners.get(event.link)
                if owner is not None:
                    self._tell(event.link, owner.on_flow, event.flow)
            case LinkAttaching():
                self._on_attaching(event)
            case LinkDetached():
                self._on_detached(event)
            case DeliveriesSettled():
                # The client settles what was answered (rcv-settle-mode second), or what was not: the engine
                # has removed it.
                owner = self._owners.get(event.link)
                if event.settled and owner is not None:
                    owner.on_settled(event.delivery_ids)
            case DeliveryResumed():
                owner = self._owners.get(event.link)
                if owner is not None:
                    self._tell(event.link, owner.on_resumed, event)
            case DeliveryBegun():
                owner = self._owners.get(event.link)
                if owner is not None:
                    self._tell(event.link, owner.on_begun, event)
            case LinkAttached():
                raise AssertionError("the broker attaches no links of its own")
            case SessionEnded():
                self.close()
                if event.fault is None:
                    self.session.end()
            case _:
                assert_never(event)

    def _on_pump_event(self, event: PumpEvent) -> None:
        match event:
            case DeliveriesSent():
                self._owners[event.link].on_sent(event.deliveries)
            case MarkerReached():
                self._owners[event.link].act_on(event.marker)
            case LinkDetached():
                self._on_detached(event)
            case _:
                assert_never(event)

    def _on_attaching(self, event: LinkAttaching) -> None:
        self._tell(event.link, self._attach, event)

    def _attach(self, event: LinkAttaching) -> None:
        if is_management(event.attach):
            self._management.attach(event.link, event.attach)
            return
        if isinstance(event.attach.target, Coordinator) and isinstance(event.link, ReceiverLink):
            self._attach_coordinator(event.link, event.attach)
            return
        try:
            self.links.attach(event.link, event.attach)
        except AmqpLinkError as error:
            if error.condition != Condition.NOT_FOUND or not self._undecided:
                raise
            self._early.append(event)
            self.session.held.hold(event.link)

    def _attach_coordinator(self, link: ReceiverLink, attach: Attach) -> None:
        commits = self.context.commits
        if commits is None:
            raise AmqpLinkError(Condition.NOT_IMPLEMENTED, "Transactions not supported")
        owner = ControlLink(
            self.session,
            link,
            self.context,
            commits,
            self.to_queue,
            self.take_commands,
            self._half_posted,
        )
        owner.accept(attach)
        self._owners[link] = owner
        self._control_links.append(owner)

    def _half_posted(self, txn_id: bytes) -> bool:
        partials = (publisher.link.partial for publisher in self.links.publishers.values())
        return any(partial is not None and partial.txn_id == txn_id for partial in partials)

    def _on_committed(self, ref: RequestRef) -> None:
        for control in self._control_links:
            try:
                if control.on_committed(ref):
                    break
            except AmqpLinkError as error:
                self.links.detach(control.link, error)
                break
        self._control_links = [control for control in self._control_links if not control.over]

    def _end_overdue(self) -> None:
        transactions = self.context.transactions
        for transaction in transactions.overdue():
            text = (
                f"transaction 0x{transaction.id.hex()} was open for too long (transaction_timeout_ms), and "
                "was rolled back: attach the control link anew"
            )
            self.links.detach(transaction.control, AmqpLinkError(Condition.TRANSACTION_TIMEOUT, text))
        transactions.watch()

    def _tell(self, link: SenderLink | ReceiverLink, method: Callable[[T], None], argument: T) -> None:
        # The link or the session ends with an error that is raised.
        try:
            try:
                method(argument)
            except RefusedError as refusal:
                raise to_amqp_error(refusal) from refusal
        except AmqpLinkError as error:
            self.links.detach(link, error)
        except ConflictError as error:
            fault = AmqpLinkError(Condition.TRANSACTION_ROLLBACK, str(error))
            self.links.detach(error.transaction.control, fault)
        except AmqpSessionError as error:
            self._fail(error)

    def _on_detached(self, event: LinkDetached) -> None:
        unsent = event.unsent
        if event.fault is None:
            if event.closed:
                self.links.on_closed(event.link)
            else:
                self.links.on_left(event.link)
            unsent = self.session.links.detach(event.link, closed=event.closed)
        owner = self._owners.pop(event.link, None)
        if owner is not None:
            owner.on_detached(unsent)

    def _fail(self, error: AmqpSessionError) -> None:
        self.close()
        self.session.end(error)

    # --- helpers ----------------------------------------------------------------------------------

    def _on_fault(self, link: SenderLink | ReceiverLink | None, error: AmqpError, refused: bool) -> None:
        # With a link it is detached. Without one the session ends.
        event, details = "session ended by the broker", {}
        if link is not None:
            event = "attach refused" if refused else "link detached by the broker"
            details = {
                "link": link.name,
                "role": "receiver" if type(link) is SenderLink else "sender",
                "address": link.address if isinstance(link.address, str) else None,
                "queue": _queue_of(link.address),
            }
        self.last_error = self.context.log.warning(
            event,
            session=self.session.channel,
            **details,
            condition=str(error.condition),
            text=error.description,
        )

    def _caller(self) -> Caller:
        context = self.context
        return Caller(
            context.catalog,
            context.vhost,
            context.access,
            context.connection,
            node_name=context.node,
            propose=context.propose,
            new_request=context.reply_to.request,
            offer_token=context.offer_token,
            report=partial(_log_operation, context.log),
        )


def _log_operation(log: ClientLog, operation: str, subject: str, refusal: str | None) -> None:
    details = {"operation": operation, "object": subject, "by": "/management"}
    if refusal is None:
        log.info("operation", **details)
    else:
        log.warning("operation refused", **details, text=refusal)


def _queue_of(address: object) -> str | None:
    if not isinstance(address, str):
        return None
    try:
        parsed = parse(address)
    except BadAddress:
        return None
    return parsed.queue if isinstance(parsed, QueueAddress) else None
