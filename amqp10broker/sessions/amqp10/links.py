"""The attach and detach of the links of one AMQP 1.0 session on which its client publishes and consumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from amqp10broker.auth.authorise import Kind
from amqp10broker.config.setting_types import AUTO
from amqp10broker.config.settings import INCOMING_WINDOW
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import PermissionDenied, RefusedError
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.plan import LATER, Decided
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand
from amqp10broker.metadata.queue_requests import DeclareQueue, DeclareSubscription, DeleteQueue, QueueEnded
from amqp10broker.protocols.amqp10.delivery import (
    UNSETTLED_ENTRIES_MAX,
    Parts,
    State,
    resume_as_sender,
    unsettled_map,
)
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    SenderSettleMode,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.queues.commands import (
    DELETE,
    ConsumerRef,
    Delete,
    DeliveryOutcome,
    Effect,
    PublisherRef,
    QueueDeleted,
    QueueDown,
    Refusal,
    RequestRef,
    Subscribe,
    SubscribeRefused,
    TimedOut,
)
from amqp10broker.sessions.amqp10.attach import (
    SourcePlan,
    Steps,
    TargetPlan,
    plan_receiver,
    plan_target,
    rcv_settle_mode,
    to_amqp_error,
)
from amqp10broker.sessions.amqp10.consumer import LinkConsumer, to_outcome
from amqp10broker.sessions.amqp10.link_owner import LinkOwners
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.resumable_links import (
    Key,
    ResumableConsumer,
    ResumableLink,
    ResumablePublisher,
    SuspensionTerms,
    terms_for,
)
from amqp10broker.sessions.context import SessionContext, ToQueue
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.credit import AutoCredit, AutoLimit, Mode, QueueCredit, add_consumed
from amqp10broker.sessions.messages import LinkFree, Part
from amqp10broker.sessions.routes import Routes

KEPT_CREDIT_MAX: Final = UNSETTLED_ENTRIES_MAX * 2 // 3
"""The automatic credit of a link that may be resumed. A client may have half as many more deliveries
unconfirmed, and all of them fit into its unsettled map.
"""


class WaitingAttach(NamedTuple):
    link: SenderLink | ReceiverLink
    request: CatalogRequest[Any]
    then: Callable[[Decided], None]


@dataclass(eq=False)
class ClientLinks:
    """The links of one session on which its client publishes and consumes.

    The engine (`protocols.amqp10.session`) holds a link that waits for the declaration of its queue, or for
    the queue's report whether it is the active consumer.
    """

    _session: Session
    _context: SessionContext
    _owners: LinkOwners
    _to_queue: ToQueue
    _take_commands: Callable[[], list[QueueCommand]]
    _routes: Routes = field(init=False)
    _gone: ClientCounters = field(default_factory=ClientCounters)
    consumers: dict[ConsumerRef, LinkConsumer] = field(default_factory=dict)
    publishers: dict[PublisherRef, LinkPublisher] = field(default_factory=dict)
    waiting: dict[RequestRef, WaitingAttach] = field(default_factory=dict)
    # Attaches of resumable links that still have an end elsewhere.
    claimed: dict[SenderLink | ReceiverLink, Attach] = field(default_factory=dict)
    # Functions that accept consumers when their queues have answered.
    _accept: dict[ConsumerRef, Callable[[], object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._routes = Routes(self._context.vhost, self._context.access, self._context.container_id)

    def counted(self) -> ClientCounters:
        publishers = (publisher.counters for publisher in self.publishers.values())
        total = ClientCounters.sum_of(chain([self._gone], publishers))
        return add_consumed(total, (consumer.credit for consumer in self.consumers.values()))

    # --- attach -----------------------------------------------------------------------------------

    def attach(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        """Accept a link, now or when its queue exists."""
        if isinstance(link, SenderLink):
            self._go_on(link, self._attach_consumer(link, attach))
        else:
            self._go_on(link, self._attach_publisher(link, attach))

    def _go_on(
        self, link: SenderLink | ReceiverLink, steps: Steps[None], decided: Decided | None = None
    ) -> None:
        try:
            request = next(steps) if decided is None else steps.send(decided)
            while True:
                decided = self.propose(link, request, partial(self._go_on, link, steps))
                if decided is None:
                    return
                request = steps.send(decided)
        except StopIteration:
            return
        except RefusedError as refusal:
            raise to_amqp_error(refusal) from refusal

    def propose(
        self, link: SenderLink | ReceiverLink, request: CatalogRequest[Any], then: Callable[[Decided], None]
    ) -> Decided | None:
        ref = self._context.reply_to.request()
        try:
            answer = self._context.propose(request, ref)
        except RefusedError as refusal:
            return Decided(ref, refusal=refusal)
        if answer is not LATER:
            return Decided(ref, answer)
        self.waiting[ref] = WaitingAttach(link, request, then)
        self._session.held.hold(link)
        return None

    def waits(self, link: SenderLink | ReceiverLink) -> bool:
        unanswered = link.state is LinkState.ATTACH_RECEIVED
        return unanswered or any(link is waiting.link for waiting in self.waiting.values())

    def answer_attach(self, ref: ConsumerRef) -> bool:
        """Answer the attach of a consumer if it waited for its queue; return whether it did."""
        accept = self._accept.pop(ref, None)
        if accept is None:
            return False
        accept()
        return True

    def _attach_consumer(self, link: SenderLink, attach: Attach) -> Steps[None]:
        there = self._resumable(link)
        if attach.source is None and isinstance(there, ResumableConsumer):
            attach.source = there.terminus  # unchanged (2.6.3)
        plan = yield from plan_receiver(attach, self._context)
        if not plan.dynamic and self._has_to_wait(link, attach):
            return
        self._take_name(link)
        source, resumable, before = plan.source, None, None
        survives = TerminusDurability.CONFIGURATION if plan.queue.lasting else TerminusDurability.NONE
        terms = self._terms(link, attach.source, survives) if _may_be_kept(plan, attach) else None
        if terms is not None:
            resumable, before = self._keep_consumer(link, attach, terms, plan)
            source = replace(source, **resumable.terms.in_terminus())
        elif not plan.dynamic:
            self._end_resumable(self._resumable(link))
        ref = self._context.reply_to.consumer() if resumable is None else resumable.ref
        address = plan.source.address
        keys = {} if resumable is None or before is None else resumable.ours()
        accept = partial(
            self._session.links.accept,
            link,
            source=source,
            target=attach.target,
            # "The sender SHOULD respect the receiver's desired settlement mode" (2.6.3). On a mixed
            # link we choose to send everything unsettled.
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            max_message_size=attach.max_message_size or 0,
            offered_capabilities=plan.capabilities,
            unsettled=None if before is None else dict.fromkeys(keys),
        )
        theirs = unsettled_map(attach)
        incomplete = attach.incomplete_unsettled
        if before is not None:
            incomplete = not accept() or incomplete
        settled = attach.snd_settle_mode == SenderSettleMode.SETTLED
        mode = Mode.DELIVERED_SETTLED if settled else Mode.DELIVERED
        credit = (
            QueueCredit(plan.queue, ref, self._to_queue, mode)
            if before is None
            else before.renewed(self._to_queue)
        )
        consumer = LinkConsumer(
            self._session,
            link,
            credit,
            address,
            self._context.flow_for(address),
            self._context,
            self.drop_consumer,
            resumable,
            resuming=incomplete,
            default_delivery_outcome=to_outcome(source.default_outcome) or DeliveryOutcome.REQUEUE,
            browse=plan.browse,
            selects=plan.selects,
            dynamic=plan.dynamic,
            exclusive=plan.exclusive,
            subscription=plan.subscription,
        )
        self._owners[link] = consumer
        self.consumers[ref] = consumer
        self._set_queue_credit(consumer)
        if before is not None:
            consumer.resume(resume_as_sender(dict.fromkeys(keys), theirs, incomplete=incomplete), keys)
            return
        if consumer.tells_active or plan.exclusive:
            # The queue answers a `Subscribe` with the state, or refuses an exclusive consumer. So the client
            # has the state as soon as it is attached.
            self._accept[ref] = accept
            self._session.held.hold(link)
        else:
            accept()
        filters = plan.filters
        self._to_queue(
            (
                plan.queue.handle,
                Subscribe(
                    ref,
                    settled,
                    exclusive=plan.exclusive,
                    answer=plan.exclusive,
                    counted=not plan.browse,
                    priority=plan.priority,
                    timeout_ms=plan.timeout_ms,
                    position=None if filters is None else filters.offset,
                    filters=filters,
                    browse=plan.browse,
                    enqueued_time=plan.enqueued_time,
                    name=self._context.reply_to.name_of(f"link '{link.name}'"),
                ),
            )
        )

    def commit(self, parts: Sequence[Part], also: Callable[[], None]) -> str | None:
        assert self._context.commits is not None, "its queues were asked whether they transact"
        return self._context.commits.commit(self._take_commands(), parts, also=also)

    def _take_name(self, link: SenderLink | ReceiverLink) -> None:
        stolen = self._context.names.take(link, self._context.to_session)
        if stolen is not None:
            self.on_stolen(stolen)

    def _attach_publisher(self, link: ReceiverLink, attach: Attach) -> Steps[None]:
        there = self._resumable(link)
        if attach.target is None and isinstance(there, ResumablePublisher):
            attach.target = there.terminus  # unchanged (2.6.3)
        plan = yield from plan_target(attach, self._context)
        if not plan.dynamic and self._has_to_wait(link, attach):
            return
        self._take_name(link)
        resumable, unsettled = None, None
        target = plan.target
        terms = None if plan.dynamic else self._terms(link, attach.target, self._durability_of(plan))
        if terms is not None:
            resumable, unsettled = self._keep_publisher(link, attach, terms)
            target = replace(target, **resumable.terms.in_terminus())
        ref = (self._context.reply_to if resumable is None else resumable.reply_to).publisher()
        address = plan.target.address
        settings = self._context.flow_for(address)
        publisher = LinkPublisher(
            self._session,
            link,
            ref,
            address,
            settings,
            self._to_queue,
            self,
            self._context,
            self._routes,
            plan.queue,
            plan.exchange,
            plan.dynamic,
            plan.topic,
            plan.temporary,
            resumable,
        )
        link.resumes = resumable is not None
        link.looks_ahead = plan.queue is None and plan.exchange is None
        self._session.links.accept(
            link,
            source=attach.source,
            target=target,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            credit_limit=settings.link_credit,
            max_message_size=self._context.config.max_message_size_bytes,
            unsettled=unsettled,
        )
        self._owners[link] = publisher
        self.publishers[ref] = publisher
        self._set_credit_limit(publisher)
        self._resize_window()

    # --- links that are kept ----------------------------------------------------------------------

    def _key(self, link: SenderLink | ReceiverLink) -> Key:
        context = self._context
        consumes = isinstance(link, SenderLink)
        return Key(context.vhost.name, context.user, context.container_id, link.name, consumes)

    def _resumable(self, link: SenderLink | ReceiverLink) -> ResumableLink | None:
        resumable = self._context.resumable_links
        return None if resumable is None else resumable.find(self._key(link))

    def _has_to_wait(self, link: SenderLink | ReceiverLink, attach: Attach) -> bool:
        # A resumable link that has an end in another session is stolen from that session first.
        there = self._resumable(link)
        if there is None or there.link is None:
            return False
        if there.link in self._owners:
            self.on_stolen(there.link)
            return False
        self.claimed[link] = attach
        self._session.held.hold(link)
        there.claim(partial(self._context.to_session, LinkFree(link)))
        return True

    def _durability_of(self, plan: TargetPlan) -> int:
        # The address is only valid later if the queue that the link publishes to survives a restart, too.
        made = plan.queue or plan.temporary
        lasts = made is None or made.lasting
        if plan.exchange is not None:
            exchange = self._context.vhost.topology.lookup_exchange(plan.exchange.exchange)
            lasts = lasts and exchange.durable
        return TerminusDurability.UNSETTLED_STATE if lasts else TerminusDurability.NONE

    def _terms(self, link: SenderLink | ReceiverLink, terminus: Any, survives: int) -> SuspensionTerms | None:
        # Return None if the link does not survive. Any state held under its name then ends.
        resumable, config = self._context.resumable_links, self._context.config
        if resumable is None:
            return None
        terms = terms_for(terminus, config) if isinstance(terminus, Source | Target) else None
        if terms is not None and resumable.has_room(self._key(link), config.suspended_links_max):
            durable = (
                TerminusDurability.NONE if resumable.records is None else min(terminus.durable, survives)
            )
            return terms._replace(durable=durable)
        self._end_resumable(self._resumable(link))
        return None

    def _keep_publisher(
        self, link: ReceiverLink, attach: Attach, terms: SuspensionTerms
    ) -> tuple[ResumablePublisher, dict[bytes, State] | None]:
        # The map is the broker's unsettled state if the link is resumed.
        links = self._context.resumable_links
        assert links is not None
        there, unsettled = self._resumable(link), None
        if isinstance(there, ResumablePublisher) and attach.unsettled is not None:
            resumable, unsettled = there, there.resume(attach)
            if there.entries:
                # The earlier end stored its deliveries no more durably than its own terms required.
                terms = terms._replace(durable=min(terms.durable, there.terms.durable))
        else:
            self._end_resumable(there)
            assert isinstance(attach.target, Target)
            resumable = ResumablePublisher(self._key(link), links.host, attach.target)
            links.add(resumable)
        links.attach(resumable, terms, link, self._context.to_session)
        return resumable, unsettled

    def _keep_consumer(
        self, link: SenderLink, attach: Attach, terms: SuspensionTerms, plan: SourcePlan
    ) -> tuple[ResumableConsumer, QueueCredit | None]:
        # The returned credit is that of the earlier end if the link is resumed.
        links, source = self._context.resumable_links, attach.source
        assert links is not None
        assert isinstance(source, Source)
        there = self._resumable(link)
        before = (
            there.credit if isinstance(there, ResumableConsumer) and attach.unsettled is not None else None
        )
        if isinstance(there, ResumableConsumer) and before is not None and _is_same(source, there.terminus):
            resumable = there
        else:
            self._end_resumable(there)
            resumable, before = ResumableConsumer(self._key(link), links, source), None
            links.add(resumable)
        links.attach(resumable, terms, link, self._context.to_session)
        return resumable, before

    def _end_resumable(self, there: ResumableLink | None) -> None:
        # The commands for queues are sent with this session's others.
        if there is not None and self._context.resumable_links is not None:
            for handle, command in self._context.resumable_links.end(there):
                self._to_queue((handle, command))

    def on_late(self, effect: Effect) -> None:
        """Pass an effect for an earlier end to its link, if the link survives."""
        links = self._context.resumable_links
        resumable = None if links is None else links.of(effect)
        if resumable is not None:
            resumable.take(effect)
        elif isinstance(effect, TimedOut):
            why = f"a delivery of queue '{effect.queue}' was held for too long, and is another consumer's"
            self._context.transactions.taken_back(effect.consumer, effect.keys, why)

    def _leave_resumable(self, resumable: ResumableLink, *, lost: bool) -> None:
        links = self._context.resumable_links
        assert links is not None
        if not resumable.outlives(lost=lost):
            self._end_resumable(resumable)
            return
        policy = resumable.terms.policy
        lingers: object = None
        if policy == TerminusExpiryPolicy.CONNECTION_CLOSE:
            lingers = self._context.names
        elif policy == TerminusExpiryPolicy.SESSION_END and not lost:
            lingers = self
        links.suspend(resumable, lingers)

    def on_left(self, link: SenderLink | ReceiverLink) -> None:
        """Note that the client detaches a link without closing it."""
        owner = self._owners.get(link)
        resumable = owner.resumable if isinstance(owner, LinkPublisher | LinkConsumer) else None
        if resumable is not None:
            resumable.stays = True

    # --- changes ----------------------------------------------------------------------------------

    def on_config(self) -> None:
        for publisher in self.publishers.values():
            publisher.settings = self._context.flow_for(publisher.address)
            self._set_credit_limit(publisher)
            self._top_up(publisher)
        for consumer in self.consumers.values():
            consumer.settings = self._context.flow_for(consumer.address)
            self._set_queue_credit(consumer)
        self._resize_window()

    def _set_credit_limit(self, publisher: LinkPublisher) -> None:
        settings, credit = publisher.settings, publisher.link.credit
        if settings.max_link_credit != AUTO:
            publisher.auto = None
        elif publisher.auto is None:
            most = self._context.config.auto_credit_max
            if publisher.resumable is not None:
                most = min(most, KEPT_CREDIT_MAX)
            limit = self._new_limit(settings.link_credit, most)
            publisher.auto = AutoCredit(credit, limit, partial(self._top_up, publisher))
        credit.limit = settings.link_credit if publisher.auto is None else publisher.auto.auto.limit

    def _set_queue_credit(self, consumer: LinkConsumer) -> None:
        settings = consumer.settings
        if settings.max_queue_credit != AUTO:
            consumer.auto_limit = None
        elif consumer.auto_limit is None:
            most = self._context.config.auto_credit_max // consumer.queue.kind.asked_times
            consumer.auto_limit = self._new_limit(settings.queue_credit, most)
        consumer.queue_credit = (
            settings.queue_credit if consumer.auto_limit is None else consumer.auto_limit.limit
        )

    def _new_limit(self, base: int, most: int) -> AutoLimit:
        context = self._context
        most_bytes = context.config.auto_credit_max_bytes
        return AutoLimit(base, most, most_bytes, context.moment.ms, context.is_memory_tight)

    def _top_up(self, publisher: LinkPublisher) -> None:
        self._resize_window()
        if publisher.link.attached:
            self._session.inbound.top_up(publisher.link)
            publisher.times.note(publisher.link.credit)

    def tighten(self) -> None:
        for publisher in self.publishers.values():
            if publisher.auto is not None:
                publisher.auto.tighten(self._context.moment.ms)
        for consumer in self.consumers.values():
            if consumer.auto_limit is not None:
                consumer.auto_limit.tighten(self._context.moment.ms)
                consumer.queue_credit = consumer.auto_limit.limit

    def _resize_window(self) -> None:
        # The window is the smallest that the settings of this session and its links request. An automatic
        # window is twice the credit that all links may have, so that it does not hold up any of them.
        context, publishers = self._context, self.publishers.values()
        asked = [context.flow_for(None), *(publisher.settings for publisher in publishers)]
        sizes = [each.max_incoming_window for each in asked if isinstance(each.max_incoming_window, int)]
        if len(sizes) < len(asked):
            needed = 2 * sum(publisher.link.credit.limit for publisher in publishers)
            sizes.append(max(INCOMING_WINDOW, min(needed, context.config.auto_window_max)))
        size = min(sizes)
        if size != self._session.incoming.size:
            self._session.incoming.resize(size)

    def on_access_changed(self) -> None:
        """Detach links from addresses that the user may no longer read or write. A queue made for a link
        belongs to the link.
        """
        access = self._context.access
        asked: list[tuple[SenderLink | ReceiverLink, Callable[[Kind, str], None], Kind, str]] = [
            (consumer.link, access.read, "queue", consumer.queue.name)
            for consumer in self.consumers.values()
            if not consumer.dynamic and not consumer.queue.kind.volatile
        ]
        asked += [
            (each.link, access.write, "exchange", "" if each.exchange is None else each.exchange.exchange)
            for each in self.publishers.values()
            if each.queue is not None
            or each.exchange is not None  # an anonymous terminus checks each message
        ]
        for link, check, kind, name in asked:
            try:
                check(kind, name)
            except PermissionDenied as refusal:
                self.detach(link, AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, refusal.description))

    def on_stolen(self, link: SenderLink | ReceiverLink) -> None:
        if link in self._owners and not self._session.ended:
            resumable = self._resumable(link)
            elsewhere = resumable is not None and resumable.link is link
            whose = "container" if elsewhere else "connection"
            text = f"link '{link.name}' was attached anew, by the same {whose}"
            self.on_left(link)
            self.detach(link, AmqpLinkError(Condition.STOLEN, text))

    # --- detach -----------------------------------------------------------------------------------

    def on_closed(self, link: SenderLink | ReceiverLink) -> None:
        """Note that the client closes a link."""
        owner = self._owners.get(link)
        if isinstance(owner, LinkConsumer):
            owner.closed = True

    def detach(self, link: SenderLink | ReceiverLink, fault: AmqpLinkError) -> None:
        """Detach a link with an error; deliveries that it held go back to its queue."""
        unsent = self._end(link, fault)
        owner = self._owners.pop(link, None)
        if owner is not None:
            owner.on_detached(unsent)

    def _end(self, link: SenderLink | ReceiverLink, fault: AmqpLinkError) -> Sequence[tuple[int, Parts]]:
        if link.state is LinkState.ATTACHED:
            return self._session.links.detach(link, fault)
        if link.state is LinkState.ATTACH_RECEIVED:
            self._session.links.refuse(link, fault)
        return ()

    def close(self) -> None:
        for waiting in self.waiting.values():
            request = waiting.request
            made = request.queue if isinstance(request, DeclareSubscription) else request
            if isinstance(made, DeclareQueue) and made.internal:
                # The declaration will be carried out although the link has ended.
                gone = DeleteQueue(made.vhost, made.name)
                self._context.propose(gone, self._context.reply_to.request())
        self.waiting.clear()
        self.claimed.clear()
        for consumer in list(self.consumers.values()):
            self.drop_consumer(consumer, self._session.links.drop(consumer.link), lost=True)
        for publisher in list(self.publishers.values()):
            self.drop_publisher(publisher, lost=True)
        if self._context.resumable_links is not None:
            self._context.resumable_links.let_run(self)

    def on_queue_deleted(self, effect: QueueDeleted) -> None:
        text = f"queue '{effect.queue}' in vhost '{self._context.vhost.name}' was deleted"
        self._lose(effect.ref, effect, AmqpLinkError(Condition.RESOURCE_DELETED, text))

    def _lose(self, ref: ConsumerRef | PublisherRef, effect: Effect, fault: AmqpLinkError) -> None:
        # End a link that its queue has ended.
        end: LinkConsumer | LinkPublisher | None
        end = (
            self.consumers.pop(ref, None) if isinstance(ref, ConsumerRef) else self.publishers.pop(ref, None)
        )
        if end is None:
            self.on_late(effect)
            return
        self._let_go(end)
        if isinstance(end, LinkPublisher):
            end.release_unsettled()
        self._end_resumable(end.resumable)
        self._end(end.link, fault)

    def on_refused(self, effect: SubscribeRefused) -> None:
        """Detach a consumer that its queue refused: another one is exclusive, or the queue has no leader."""
        consumer = self.consumers.get(effect.consumer)
        subscription = None if consumer is None else consumer.subscription
        queue = f"queue '{effect.queue}' in vhost '{self._context.vhost.name}'"
        if effect.why is Refusal.NO_LEADER:
            fault = AmqpLinkError(Condition.INTERNAL_ERROR, f"timed out consuming from quorum {queue}")
        elif subscription is not None:
            text = f"subscription '{subscription.name}' is in use: close its consumers first"
            fault = AmqpLinkError(Condition.RESOURCE_LOCKED, text)
        else:
            fault = AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, f"{queue} in exclusive use")
        self._lose(effect.consumer, effect, fault)

    def on_queue_down(self, effect: QueueDown) -> None:
        text = (
            f"queue '{effect.queue}' in vhost '{self._context.vhost.name}': its node is down or inaccessible"
        )
        self._lose(effect.consumer, effect, AmqpLinkError(Condition.ILLEGAL_STATE, text))

    def drop_consumer(
        self, consumer: LinkConsumer, unsent: Sequence[tuple[int, Parts]], *, lost: bool = False
    ) -> None:
        """Remove a consumer after its link has ended. `lost`: it ended with its session or connection."""
        if self.consumers.pop(consumer.ref, None) is None:
            return
        self._let_go(consumer)
        resumable = consumer.resumable
        if resumable is not None and resumable.outlives(lost=lost):
            consumer.suspend(unsent)
        else:
            consumer.leave(unsent, lost=lost)
        if resumable is not None:
            self._leave_resumable(resumable, lost=lost)
        queue, subscription = consumer.queue, consumer.subscription
        if consumer.dynamic:
            self._delete(queue)
        elif consumer.closed and consumer.exclusive:
            queue.ended = True
            gone = QueueEnded(queue.vhost, queue.name, queue.handle, farewell=True)
            self._context.catalog.see_to(gone)
        elif consumer.closed and subscription is not None and subscription.durable:
            # The queue is not deleted if other links share it. The answer is not needed.
            self._to_queue((queue.handle, Delete(self._context.reply_to.request(), if_unused=True)))

    def drop_publisher(self, publisher: LinkPublisher, *, lost: bool = False) -> None:
        if self.publishers.pop(publisher.ref, None) is None:
            return
        self._let_go(publisher)
        publisher.leave()
        resumable = publisher.resumable
        if resumable is not None:
            resumable.suspended(publisher.ref)
            self._leave_resumable(resumable, lost=lost)
        self._resize_window()
        made = publisher.queue or publisher.temporary
        if publisher.exclusive_queue and made is not None:
            self._delete(made)

    def _let_go(self, end: LinkConsumer | LinkPublisher) -> None:
        self._owners.pop(end.link, None)
        if isinstance(end, LinkConsumer):
            self._accept.pop(end.ref, None)
            end.end_acquisition()
            end.credit.retire(self._gone)
        else:
            self._gone.add(end.counters)
        self._context.names.leave(end.link)

    def _delete(self, queue: DeclaredQueue) -> None:
        if queue.kind.volatile:
            self._context.vhost.remove_volatile(queue)
        else:
            self._context.catalog.see_to(QueueEnded(queue.vhost, queue.name, queue.handle))
        self._to_queue((queue.handle, DELETE))


def _may_be_kept(plan: SourcePlan, attach: Attach) -> bool:
    # A link is not resumable if its deliveries are settled as they are sent, or if its queue ends with the
    # link or connection, or delivers by position.
    queue = plan.queue
    if attach.snd_settle_mode == SenderSettleMode.SETTLED or plan.browse or plan.dynamic:
        return False
    return plan.subscription is None and not (queue.exclusive or queue.kind.replays or queue.kind.volatile)


def _is_same(one: Source, other: Source) -> bool:
    return (
        replace(one, durable=other.durable, expiry_policy=other.expiry_policy, timeout=other.timeout) == other
    )
