"""The links of one AMQP 1.0 session by which its client publishes and consumes: how they come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Attach, SenderSettleMode
from amqp10broker.amqp10.session import Session
from amqp10broker.catalog.proposing import LATER, Decided
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.queue_requests import DeclareQueue, DeleteQueue, QueueEnded
from amqp10broker.errors import PermissionDenied, RefusedError
from amqp10broker.queues.commands import DELETE, ConsumerRef, PublisherRef, RequestRef, Subscribe
from amqp10broker.queues.effects import QueueDeleted, QueueDown, Refusal, SubscribeRefused
from amqp10broker.service.context import Post, SessionContext
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.queue_credit import Mode, QueueCredit
from amqp10broker.service.routes import Routes
from amqp10broker.service.sessions.attach import Steps, plan_source, plan_target, rcv_settle_mode
from amqp10broker.service.sessions.consumer import Consumer, ConsumerTerms
from amqp10broker.service.sessions.link_owner import LinkOwners
from amqp10broker.service.sessions.publisher import Publisher


class Waiting(NamedTuple):
    """A link that waits for a queue to be declared."""

    link: SenderLink | ReceiverLink
    request: DeclareQueue
    then: Callable[[Decided], None]


class ClientLinks:
    """See the module.

    A link that must wait is held in the engine (`amqp10/held.py`): one whose queue is to be declared, and one
    whose attach is answered when its queue has said whether it is the active consumer.

    Attributes:
        consumers: those by which the client consumes, as queues know them.
        publishers: those by which it publishes, likewise.
    """

    def __init__(self, session: Session, context: SessionContext, owners: LinkOwners, post: Post) -> None:
        """Begin without links.

        Args:
            session: the engine.
            context: the broker around the session.
            owners: of all links of the session.
            post: puts a letter to a queue.
        """
        self._session = session
        self._owners = owners
        self._context = context
        self._post = post
        self._routes = Routes(context.vhost, context.access)
        self._gone = ClientCounters()
        self.consumers: dict[ConsumerRef, Consumer] = {}
        self.publishers: dict[PublisherRef, Publisher] = {}
        self._waiting: dict[RequestRef, Waiting] = {}
        # Accept consumers whose queues have not spoken yet.
        self._accept: dict[ConsumerRef, Callable[[], None]] = {}

    def counted(self) -> ClientCounters:
        """What they did and got, those that are gone included."""
        publishers = (publisher.counters for publisher in self.publishers.values())
        total = ClientCounters.sum_of(chain([self._gone], publishers))
        return total.consumed(consumer.credit for consumer in self.consumers.values())

    # --- they come --------------------------------------------------------------------------------

    def attach(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        """Accept a link, now or when what it waits for is there.

        Raises:
            AmqpLinkError: it must be refused with it.
            AmqpSessionError: the session must be ended with it.
        """
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

    def propose(
        self, link: SenderLink | ReceiverLink, request: DeclareQueue, then: Callable[[Decided], None]
    ) -> Decided | None:
        """Have the declaration of a queue decided for a link; see `publisher.PublisherLinks`."""
        ref = self._context.reply_to.request()
        try:
            answer = self._context.propose(request, ref)
        except RefusedError as refusal:
            return Decided(ref, refusal=refusal)
        if answer is not LATER:
            return Decided(ref, answer)
        self._waiting[ref] = Waiting(link, request, then)
        self._session.held.hold(link)
        return None

    @property
    def undecided(self) -> bool:
        """Whether a queue that is to be declared for a link is not decided yet."""
        return bool(self._waiting)

    def take_waiting(self, ref: RequestRef) -> Waiting | None:
        """What waits for this decision; it waits no more."""
        return self._waiting.pop(ref, None)

    def waits(self, link: SenderLink | ReceiverLink) -> bool:
        """Whether a link must still be held."""
        unanswered = link.state is LinkState.ATTACH_RECEIVED
        return unanswered or any(link is waiting.link for waiting in self._waiting.values())

    def answer_attach(self, ref: ConsumerRef) -> bool:
        """A queue has spoken of its consumer; returns whether the consumer's attach is answered only now."""
        accept = self._accept.pop(ref, None)
        if accept is None:
            return False
        accept()
        return True

    def _attach_consumer(self, link: SenderLink, attach: Attach) -> Steps[None]:
        plan = yield from plan_source(attach, self._context)
        self._take_name(link)
        ref = self._context.reply_to.consumer()
        address = plan.source.address
        accept = partial(
            self._session.links.accept,
            link,
            source=plan.source,
            target=attach.target,
            # "The sender SHOULD respect the receiver's desired settlement mode" (2.6.3). On a mixed
            # link we choose to send everything unsettled.
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            max_message_size=attach.max_message_size or 0,
            offered_capabilities=plan.capabilities,
        )
        settled = attach.snd_settle_mode == SenderSettleMode.SETTLED
        terms = ConsumerTerms(
            address,
            plan.default_verdict,
            plan.dynamic,
            # Which of its deliveries we still have we cannot know, and we have none: so none are sent.
            resuming=attach.incomplete_unsettled,
        )
        consumer = Consumer(
            self._session,
            link,
            QueueCredit(plan.queue, ref, self._post, Mode.DELIVERED_SETTLED if settled else Mode.DELIVERED),
            terms,
            self._context.flow_for(address),
            self,
            moment=self._context.moment,
            log=self._context.log,
        )
        if consumer.tells_active:
            # Its queue answers a `Subscribe` with that. The client hears it with the attach, so that it
            # knows as soon as it is attached.
            self._accept[ref] = accept
            self._session.held.hold(link)
        else:
            accept()
        self._owners.senders[link] = consumer
        self.consumers[ref] = consumer
        filters = plan.filters
        self._post(
            plan.queue.handle,
            Subscribe(
                ref,
                settled,
                priority=plan.priority,
                timeout_ms=plan.timeout_ms,
                position=None if filters is None else filters.offset,
                filters=filters,
                enqueued_time=plan.enqueued_time,
                name=self._context.reply_to.name_of(f"link '{link.name}'"),
            ),
        )

    def _take_name(self, link: SenderLink | ReceiverLink) -> None:
        stolen = self._context.names.take(link, self._context.tell_stolen)
        if stolen is not None:
            self.on_stolen(stolen)

    def _attach_publisher(self, link: ReceiverLink, attach: Attach) -> Steps[None]:
        plan = yield from plan_target(attach, self._context)
        self._take_name(link)
        ref = self._context.reply_to.publisher()
        address = plan.target.address
        settings = self._context.flow_for(address)
        publisher = Publisher(
            self._session,
            link,
            plan.queue,
            plan.exchange,
            ref,
            address,
            settings,
            self._post,
            self,
            context=self._context,
            routes=self._routes,
            exclusive_queue=plan.dynamic,
        )
        self._session.links.accept(
            link,
            source=attach.source,
            target=plan.target,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            credit_limit=settings.max_link_credit,
            max_message_size=self._context.config.max_message_size_bytes,
        )
        self._owners.receivers[link] = publisher
        self.publishers[ref] = publisher
        self._resize_window()

    # --- what changes for them --------------------------------------------------------------------

    def on_config(self) -> None:
        """The configuration was replaced: grants from now on follow it."""
        for publisher in self.publishers.values():
            publisher.settings = self._context.flow_for(publisher.address)
            publisher.link.credit.limit = publisher.settings.max_link_credit
            if publisher.link.attached:
                self._session.inbound.top_up(publisher.link)
        for consumer in self.consumers.values():
            consumer.settings = self._context.flow_for(consumer.address)
        self._resize_window()

    def _resize_window(self) -> None:
        """The smallest window that this session's settings, and those of its links, ask for."""
        sizes = [publisher.settings.max_incoming_window for publisher in self.publishers.values()]
        size = min([self._context.flow_for(None).max_incoming_window, *sizes])
        if size != self._session.incoming.size:
            self._session.incoming.resize(size)

    def on_access_changed(self) -> None:
        """The user may do other things than before: links that consume what it may not read are detached.

        Publishers ask at each batch. What was made for a link is its own, and was not asked about.
        """
        access = self._context.access
        for consumer in list(self.consumers.values()):
            if consumer.terms.exclusive_queue or consumer.queue.kind.volatile:
                continue
            try:
                access.read("queue", consumer.queue.name)
            except PermissionDenied as refusal:
                fault = AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, refusal.description)
                self.detach(consumer.link, fault)

    def on_stolen(self, link: SenderLink | ReceiverLink) -> None:
        """A link's name was attached anew: that attach has the link now."""
        if self._owners.find(link) is not None and not self._session.ended:
            text = f"link '{link.name}' was attached anew, by the same connection"
            self.detach(link, AmqpLinkError(Condition.STOLEN, text))

    # --- they go ----------------------------------------------------------------------------------

    def detach(self, link: SenderLink | ReceiverLink, fault: AmqpLinkError) -> None:
        """End a link from our side: what it held goes back."""
        unsent = self._end(link, fault)
        owner = self._owners.take(link)
        if owner is not None:
            owner.on_detached(unsent)

    def _end(self, link: SenderLink | ReceiverLink, fault: AmqpLinkError) -> Sequence[tuple[int, Parts]]:
        """Tell the client that a link ends; returns keys and messages of deliveries that never left."""
        if link.state is LinkState.ATTACHED:
            return self._session.links.detach(link, fault)
        if link.state is LinkState.ATTACH_RECEIVED:
            self._session.links.refuse(link, fault)
        return ()

    def close(self) -> None:
        """The session is over: everything goes back. May be called twice."""
        for waiting in self._waiting.values():
            request = waiting.request
            if request.internal:
                # It will be made for a link that is no more: what is proposed behind that ends it.
                gone = DeleteQueue(request.vhost, request.name)
                self._context.propose(gone, self._context.reply_to.request())
        self._waiting.clear()
        for consumer in list(self.consumers.values()):
            self.drop_consumer(consumer, self._session.links.drop(consumer.link), lost=True)
        for publisher in list(self.publishers.values()):
            self.drop_publisher(publisher)

    def on_queue_deleted(self, effect: QueueDeleted) -> None:
        """The queue of a link is gone."""
        ref = effect.ref
        end: Consumer | Publisher | None
        end = (
            self.consumers.pop(ref, None) if isinstance(ref, ConsumerRef) else self.publishers.pop(ref, None)
        )
        if end is None:
            return
        self._let_go(end)
        if isinstance(end, Publisher):
            end.release_unsettled()
        text = f"queue '{effect.queue}' in vhost '{self._context.vhost.name}' was deleted"
        self._end(end.link, AmqpLinkError(Condition.RESOURCE_DELETED, text))

    def on_refused(self, effect: SubscribeRefused) -> None:
        """An AMQP 0-9-1 consumer has the queue for itself, or the queue has no leader."""
        consumer = self.consumers.pop(effect.consumer, None)
        if consumer is None:
            return
        self._let_go(consumer)
        queue = f"queue '{effect.queue}' in vhost '{self._context.vhost.name}'"
        if effect.why is Refusal.NO_LEADER:
            fault = AmqpLinkError(Condition.INTERNAL_ERROR, f"timed out consuming from quorum {queue}")
        else:
            fault = AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, f"{queue} in exclusive use")
        self._end(consumer.link, fault)

    def on_queue_down(self, effect: QueueDown) -> None:
        """The node of a consumer's queue cannot be reached any more."""
        consumer = self.consumers.pop(effect.consumer, None)
        if consumer is None:
            return
        self._let_go(consumer)
        text = (
            f"queue '{effect.queue}' in vhost '{self._context.vhost.name}': its node is down or inaccessible"
        )
        self._end(consumer.link, AmqpLinkError(Condition.ILLEGAL_STATE, text))

    def drop_consumer(
        self, consumer: Consumer, unsent: Sequence[tuple[int, Parts]], *, lost: bool = False
    ) -> None:
        """A link by which the client consumes has ended.

        Args:
            consumer: also one that is not known any more.
            unsent: keys and messages of deliveries that never left.
            lost: with its session or connection.
        """
        if self.consumers.pop(consumer.ref, None) is None:
            return
        self._let_go(consumer)
        consumer.leave(unsent, lost=lost)
        if consumer.terms.exclusive_queue:
            self._delete(consumer.queue)

    def drop_publisher(self, publisher: Publisher) -> None:
        """A link by which the client publishes has ended; likewise."""
        if self.publishers.pop(publisher.ref, None) is None:
            return
        self._let_go(publisher)
        publisher.leave()
        self._resize_window()
        if publisher.exclusive_queue and publisher.queue is not None:
            self._delete(publisher.queue)

    def _let_go(self, end: Consumer | Publisher) -> None:
        self._owners.take(end.link)
        if isinstance(end, Consumer):
            self._accept.pop(end.ref, None)
            end.credit.retire(self._gone)
        else:
            self._gone.add(end.counters)
        self._context.names.leave(end.link)

    def _delete(self, queue: DeclaredQueue) -> None:
        """A queue that was made for a link goes with it, behind what the link has put into it."""
        if queue.kind.volatile:
            self._context.vhost.remove_volatile(queue)
        else:
            self._context.catalog.see_to(QueueEnded(queue.vhost, queue.name, queue.handle))
        self._post(queue.handle, DELETE)
