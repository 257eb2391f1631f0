"""The links of one AMQP 1.0 session by which its client publishes and consumes: how they come and go."""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Attach, SenderSettleMode
from amqp10broker.amqp10.session import Session
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.catalog.queue_requests import QueueEnded
from amqp10broker.errors import PermissionDenied
from amqp10broker.queues.commands import DELETE, ConsumerRef, PublisherRef, Subscribe
from amqp10broker.queues.effects import QueueDeleted, SubscribeRefused
from amqp10broker.service.context import Post, SessionContext
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.queue_credit import QueueCredit
from amqp10broker.service.routes import Routes
from amqp10broker.service.sessions.attach import plan_source, plan_target, rcv_settle_mode
from amqp10broker.service.sessions.consumer import Consumer, ConsumerTerms
from amqp10broker.service.sessions.link_owner import LinkOwners
from amqp10broker.service.sessions.publisher import Publisher


class ClientLinks:
    """See the module.

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

    def counted(self) -> ClientCounters:
        """What they did and got, those that are gone included."""
        links = [consumer.counted() for consumer in self.consumers.values()]
        links += [publisher.counted() for publisher in self.publishers.values()]
        return ClientCounters.sum_of([self._gone, *links])

    # --- they come --------------------------------------------------------------------------------

    def attach_consumer(self, link: SenderLink, attach: Attach) -> None:
        """Accept a link by which the client consumes.

        Raises:
            AmqpLinkError: it must be refused with it.
            AmqpSessionError: the session must be ended with it.
        """
        plan = plan_source(attach, self._context)
        self._take_name(link)
        ref = self._context.reply_to.consumer()
        address = plan.source.address
        self._session.links.accept(
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
            QueueCredit(plan.queue, ref, self._post),
            terms,
            self._context.flow_for(address),
            self,
            moment=self._context.moment,
            log=self._context.log,
        )
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

    def attach_publisher(self, link: ReceiverLink, attach: Attach) -> None:
        """Accept a link by which the client publishes; raises likewise."""
        plan = plan_target(attach, self._context)
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
        if link.attached and not self._session.ended:
            text = f"link '{link.name}' was attached anew, by the same connection"
            self.detach(link, AmqpLinkError(Condition.STOLEN, text))

    # --- they go ----------------------------------------------------------------------------------

    def detach(self, link: SenderLink | ReceiverLink, fault: AmqpLinkError) -> None:
        """End a link from our side: what it held goes back."""
        unsent = self._session.links.detach(link, fault)
        owner = self._owners.take(link)
        if owner is not None:
            owner.on_detached(unsent)

    def close(self) -> None:
        """The session is over: everything goes back. May be called twice."""
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
        if end.link.state is LinkState.ATTACHED:
            text = f"queue '{effect.queue}' in vhost '{self._context.vhost.name}' was deleted"
            self._session.links.detach(end.link, AmqpLinkError(Condition.RESOURCE_DELETED, text))

    def on_refused(self, effect: SubscribeRefused) -> None:
        """An AMQP 0-9-1 consumer has the queue for itself."""
        consumer = self.consumers.pop(effect.consumer, None)
        if consumer is None:
            return
        self._let_go(consumer)
        if consumer.link.state is LinkState.ATTACHED:
            vhost = self._context.vhost.name
            text = f"queue '{effect.queue}' in vhost '{vhost}' in exclusive use"
            self._session.links.detach(consumer.link, AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, text))

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
        self._gone.add(end.counted())
        self._context.names.leave(end.link)

    def _delete(self, queue: DeclaredQueue) -> None:
        """A queue that was made for a link goes with it, behind what the link has put into it."""
        if queue.kind.volatile:
            self._context.vhost.remove_volatile(queue)
        else:
            self._context.catalog.propose(QueueEnded(queue.vhost, queue.name, queue.handle))
        self._post(queue.handle, DELETE)
