"""Operations of the management room, run by a living broker for the machine's owner or a user.

The room itself is synchronous; what takes time, or reaches tasks, is done here:

- passwords become argon2 records in a thread (as logins do, see `login`), before the operation runs;
- where an operation needs a queue's answer, it is awaited in a mailbox of this one request, so that any
  number of requests may wait at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import trio

from amqp10broker.auth.authorise import Access
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, InvalidArgument
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.proposing import Decided
from amqp10broker.metadata.queue_arguments import misspelt
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.caller import Caller, Job, QueueQuestion, WaitForDecision
from amqp10broker.operations.operations import perform
from amqp10broker.operations.table import OPERATIONS
from amqp10broker.queues.commands import ReplyTo, RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.runtime.admin.node import BY_ADMIN_SOCKET, Administered, RunningNode
from amqp10broker.runtime.connections.password_records import made_in_thread, passwords_in
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.messages import SessionMessage

T = TypeVar("T")

_log = Log("amqp10broker.admin")

ANSWER_S: Final = 8.0
"""How long a queue may take; less than the command line waits, so that it hears which queue it was."""
DECIDED_S: Final = 40.0
"""How long the nodes of a cluster may take to agree: they give up by themselves, and say so, before."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller of an operation.

    Attributes:
        access: the user's permissions; None: everything, or the caller has checked them.
        types: arguments are typed by hand, and a slip in them is refused. Clients may declare queues with
            any argument.
    """

    by: str
    access: Access | None = None
    types: bool = False


OWNER: Final = Actor(BY_ADMIN_SOCKET, types=True)
"""The machine's owner, the only one who reaches the admin socket."""


async def run_operation(
    broker: Administered, name: str, given: Mapping[str, Any], vhost: str | None, actor: Actor = OWNER
) -> Any:
    """Run an operation of `operations.table` to its end. Raises a `RefusedError` subclass with the reason if
    nothing was changed.
    """
    if name == "declare-queue" and actor.types:
        _refuse_slip(given)
    passwords = await made_in_thread(broker.passwords, passwords_in(name, given))
    found = _vhost(broker, name, vhost)
    mailbox: Mailbox[SessionMessage] = Mailbox()
    address = broker.reply_registry.open("admin", mailbox)
    caller = Caller(
        catalog=broker.catalog,
        vhost=found,
        access=actor.access,
        connection=None,
        node_name=broker.config.node_name or broker.container_id,
        node=RunningNode(broker, actor.by),
        propose=broker.propose,
        reply_to=address,
        passwords=passwords,
        report=partial(_log_operation, found, actor.by),
    )
    try:
        return await _finished(perform(caller, name, given), mailbox, address)
    finally:
        broker.reply_registry.close(address)
        mailbox.close()


def _refuse_slip(given: Mapping[str, Any]) -> None:
    arguments = given.get("arguments")
    slip = misspelt(arguments) if isinstance(arguments, dict) else None
    if slip is not None:
        raise InvalidArgument("queue", f"no queue knows argument '{slip[0]}'; did you mean {slip[1]}?")


def _log_operation(vhost: VirtualHost, by: str, operation: str, subject: str, refusal: str | None) -> None:
    details = {"operation": operation, "object": subject, "vhost": vhost.name, "by": by}
    if refusal is None:
        _log.info("operation", **details)
    else:
        _log.warning("operation refused", **details, text=refusal)


async def _finished(result: Any, mailbox: Mailbox[SessionMessage], address: ReplyTo) -> Any:
    # Put an operation's questions to queues, and wait for what is decided, until there is a result.
    while isinstance(result, QueueQuestion | WaitForDecision | Job):
        if isinstance(result, Job):
            result = result.then(await result.run())
            continue
        if isinstance(result, WaitForDecision):
            decided = await _heard(mailbox, partial(_decision_in, ref=result.ref), DECIDED_S)
            if decided is None:
                raise BrokerError(
                    f"it has not been decided for {DECIDED_S:g} s: look with a list command whether it is "
                    "done"
                )
            result = result.then(decided)
            continue
        request = address.request()
        result.handle.post(result.command(request))
        # A queue that is deleted meanwhile answers that it is gone. The time is for one that is stuck.
        answer = await _heard(mailbox, partial(_answer_in, request=request))
        if answer is None:
            raise BrokerError(
                f"the queue has not answered for {ANSWER_S:g} s: it is overloaded; look at it with "
                "'amqp10broker status', and whether it was done with 'amqp10broker list-queues'"
            )
        result = result.then(answer)
    return result


async def _heard(
    mailbox: Mailbox[SessionMessage],
    find: Callable[[list[SessionMessage]], T | None],
    within_s: float = ANSWER_S,
) -> T | None:
    with trio.move_on_after(within_s):
        while True:
            found = find(await mailbox.take_all())
            if found is not None:
                return found
    return None


def _answer_in(messages: list[SessionMessage], request: RequestRef) -> Answer | None:
    for message in messages:
        if isinstance(message, list):
            for effect in message:
                if isinstance(effect, Answer) and effect.request == request:
                    return effect
    return None


def _decision_in(messages: list[SessionMessage], ref: RequestRef) -> Decided | None:
    return next((each for each in messages if isinstance(each, Decided) and each.ref == ref), None)


def _vhost(broker: Administered, operation: str, name: str | None) -> VirtualHost:
    name = broker.config.default_vhost if name is None else name
    found = broker.catalog.find_vhost(name)
    if found is None:
        if OPERATIONS[operation].in_vhost:
            return broker.catalog.lookup_vhost(name)
        # The default one may be deleted, and users must be manageable all the same.
        found = VirtualHost(VhostFacts(name), broker)
        found.deleted = True
    return found
