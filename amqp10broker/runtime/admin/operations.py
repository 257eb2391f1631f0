"""Operations of the management room, run by a living broker for the machine's owner or a user.

The room itself is synchronous; what takes time, or reaches tasks, is done here:

- passwords become argon2 records in a thread (as logins do, see `login`), before the operation runs;
- where an operation needs a queue's answer, it is awaited in a mailbox of this one request, so that any
  number of requests may wait at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from amqp10broker.errors import BrokerError, InvalidArgument, RefusedError
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.proposing import Decided
from amqp10broker.metadata.queue_arguments import misspelt
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.caller import Actor, Caller, Steps, Wait
from amqp10broker.operations.registry import OPERATIONS, perform
from amqp10broker.queues.commands import ReplyTo, RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.runtime.admin.node import BY_ADMIN_SOCKET, Administered, RunningNode
from amqp10broker.runtime.connections.login import made_in_thread, passwords_in
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.handles import ReplyRegistry
from amqp10broker.sessions.messages import SessionMessage

_log = Log("amqp10broker.admin")

ANSWER_S: Final = 8.0
"""How long a queue may take; less than the command line waits, so that it hears which queue it was."""
DECIDED_S: Final = 40.0
"""How long the nodes of a cluster may take to agree: they give up by themselves, and say so, before."""


OWNER: Final = Actor(BY_ADMIN_SOCKET, types=True)
"""The machine's owner: no other user reaches the admin socket."""


async def run_operation(
    broker: Administered, name: str, given: Mapping[str, Any], vhost: str | None, actor: Actor = OWNER
) -> Any:
    """Run an operation of `operations.registry` to its end. Raises a `RefusedError` subclass with the reason
    if nothing was changed.
    """
    if name == "declare-queue" and actor.types:
        arguments = given.get("arguments")
        slip = misspelt(arguments) if isinstance(arguments, dict) else None
        if slip is not None:
            raise InvalidArgument("queue", f"no queue knows argument '{slip[0]}'; did you mean {slip[1]}?")
    plain = passwords_in(name, given)
    found = _vhost(broker, name, vhost)
    replies = _Replies(broker.reply_registry)
    caller = Caller(
        catalog=broker.catalog,
        vhost=found,
        access=actor.access,
        connection=None,
        node_name=broker.config.node_name or broker.container_id,
        running=partial(RunningNode, broker, actor.by),
        propose=broker.propose,
        new_request=replies.new_request,
        passwords=await made_in_thread(broker.passwords, plain) if plain else broker.passwords,
        report=partial(_log_operation, found, actor.by),
    )
    try:
        return await _finished(perform(caller, name, given), replies)
    finally:
        replies.close()


def _log_operation(vhost: VirtualHost, by: str, operation: str, subject: str, refusal: str | None) -> None:
    details = {"operation": operation, "object": subject, "vhost": vhost.name, "by": by}
    if refusal is None:
        _log.info("operation", **details)
    else:
        _log.warning("operation refused", **details, text=refusal)


async def _finished(steps: Steps[Any], replies: _Replies) -> Any:
    resume: Callable[[Any], Any] = steps.send
    heard: Any = None
    while True:
        try:
            step = resume(heard)
        except StopIteration as done:
            return done.value
        resume = steps.send
        try:
            heard = await (replies.reply_to(step) if isinstance(step, Wait) else step)
        except RefusedError as refusal:
            resume, heard = steps.throw, refusal


class _Replies:
    """The reply address of one operation, which most do not need: it is opened with the first request."""

    def __init__(self, registry: ReplyRegistry) -> None:
        self._registry = registry
        self._mailbox: Mailbox[SessionMessage] = Mailbox()
        self._address: ReplyTo | None = None

    def new_request(self) -> RequestRef:
        if self._address is None:
            self._address = self._registry.open("admin", self._mailbox)
        return self._address.request()

    async def reply_to(self, wait: Wait) -> Answer | Decided:
        within_s = DECIDED_S if wait.queue is None else ANSWER_S
        if wait.queue is not None and wait.command is not None:
            wait.queue.post(wait.command)
        with trio.move_on_after(within_s):
            while True:
                for message in await self._mailbox.take_all():
                    # Effects of queues come in lists.
                    for each in message if isinstance(message, list) else (message,):
                        if isinstance(each, Answer) and each.request == wait.ref:
                            return each
                        if isinstance(each, Decided) and each.ref == wait.ref:
                            return each
        # A queue that is deleted meanwhile answers that it is gone. The time is for one that is stuck.
        raise BrokerError(
            f"it has not been decided for {within_s:g} s: look with a list command whether it is done"
            if wait.queue is None
            else f"the queue has not answered for {within_s:g} s: it is overloaded; look at it with "
            "'amqp10broker status', and whether it was done with 'amqp10broker queue list'"
        )

    def close(self) -> None:
        if self._address is not None:
            self._registry.close(self._address)
            self._mailbox.close()


def _vhost(broker: Administered, operation: str, name: str | None) -> VirtualHost:
    name = broker.config.default_vhost if name is None else name
    found = broker.catalog.find_vhost(name)
    if found is None:
        if OPERATIONS[operation].in_vhost:
            return broker.catalog.lookup_vhost(name)
        # The default one may be deleted, and users must be manageable all the same.
        found = VirtualHost(VhostFacts(name), broker.start_queue)
        found.deleted = True
    return found
