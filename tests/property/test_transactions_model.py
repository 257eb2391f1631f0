"""Transactions of AMQP 1.0 of a whole broker, against what they mean, written down message by message.

A client has links to a classic and a quorum queue, and credit for all there is: what is visible comes to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Detach,
    Discharge,
    Disposition,
    Modified,
    Source,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.journal_harness import LONG
from tests.support.rawframes import attach_receiver, body_of, credit, disposition, transfer
from tests.support.transacting import LINKS, Session, request, start
from tests.support.trioclient import queue_counts, running_broker, settle_down

ALL = 1_000
OUTCOMES: dict[str, Any] = {"accepted": Accepted(), "released": RELEASED}


@dataclass
class Message:
    """One message.

    Attributes:
        queue: where it is, or is to be.
        delivery: its delivery to the client that is not settled; None: it has none.
        place: ``hidden`` in a transaction, ``visible``, or ``gone``.
    """

    queue: str
    delivery: int | None = None
    place: str = "hidden"


@dataclass
class Open:
    """A transaction: what it posts, and what it decides of which messages, and whether these are settled."""

    id: bytes
    posts: list[int] = field(default_factory=list)
    decided: dict[int, tuple[str, bool]] = field(default_factory=dict)


class Model:
    """What there is, and what the client knows of it."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.open: list[Open] = []

    def apply(self, number: int, outcome: str) -> None:
        message = self.messages[number]
        message.delivery = None
        if outcome == "accepted":
            message.place = "gone"

    def commit(self, transaction: Open) -> None:
        for number in transaction.posts:
            self.messages[number].place = "visible"
        for number, (outcome, _) in transaction.decided.items():
            self.apply(number, outcome)

    def roll_back(self, transaction: Open) -> None:
        for number in transaction.posts:
            self.messages[number].place = "gone"
        for number, (_, settled) in transaction.decided.items():
            if settled:
                self.apply(number, "default")

    def undecided(self) -> list[int]:
        settled = {number for each in self.open for number, (_, over) in each.decided.items() if over}
        return [
            number
            for number, message in self.messages.items()
            if message.delivery is not None and number not in settled
        ]


class Walk:
    """A client that does what it is told, and the model with it."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self.broker = broker
        self.session = session
        self.model = Model()
        self.discharge: int | None = None

    async def declare(self) -> None:
        self.model.open.append(Open(await self.session.declare()))

    async def post(self, within: int, queue: str, *, settled: bool) -> None:
        transaction = self.one_of(self.model.open, within)
        number = len(self.model.messages)
        message = self.model.messages[number] = Message(queue)
        if transaction is None:
            message.place = "visible"
        else:
            transaction.posts.append(number)
        state = None if transaction is None else TransactionalState(txn_id=transaction.id)
        frame = transfer(LINKS[queue], self.session.take_id(), b"%d" % number, state=state, settled=settled)
        await self.session.client.send(frame)

    async def decide(self, which: int, within: int, outcome: str, *, settled: bool) -> None:
        model = self.model
        number = self.one_of([None, *model.undecided()], which)
        if number is None:
            return
        message, transaction = model.messages[number], self.one_of(model.open, within)
        before = next((each for each in model.open if number in each.decided), None)
        if transaction is not None and before not in (None, transaction):
            return  # it ends the second one's control link: another test's
        delivery = message.delivery
        state = OUTCOMES[outcome]
        if transaction is None:
            if before is not None:
                del before.decided[number]
            model.apply(number, outcome)
        else:
            transaction.decided[number] = outcome, settled
            state = TransactionalState(txn_id=transaction.id, outcome=state)
        await self.session.client.send(disposition(delivery, state=state, settled=settled))

    async def end(self, which: int, *, fail: bool) -> None:
        transaction = self.one_of(self.model.open, which)
        if transaction is None:
            return
        self.model.open.remove(transaction)
        (self.model.roll_back if fail else self.model.commit)(transaction)
        self.discharge = self.session.take_id()
        await self.session.client.send(request(self.discharge, Discharge(txn_id=transaction.id, fail=fail)))

    async def look(self) -> None:
        """Exactly the visible messages have been delivered; a discharge is accepted."""
        came: dict[int, int] = {}
        for got in await self.session.client.idle():
            assert not isinstance(got.body, Detach)
            if isinstance(got.body, Disposition) and got.body.role and got.body.first == self.discharge:
                assert got.body.state == ACCEPTED
                self.discharge = None
            if isinstance(got.body, Transfer):
                number = int(body_of(got.payload))
                assert number not in came
                came[number] = got.body.delivery_id
        assert self.discharge is None
        messages = self.model.messages
        awaited = {n for n, each in messages.items() if each.place == "visible" and each.delivery is None}
        assert came.keys() == awaited
        for number, delivery in came.items():
            messages[number].delivery = delivery
        for name in LINKS:
            here = [each for each in messages.values() if each.queue == name and each.place == "visible"]
            assert queue_counts(self.broker, name) == (0, len(here))

    @staticmethod
    def one_of(choices: list[Any], which: int) -> Any:
        return ([None, *choices] if choices else [None])[which % (len(choices) + 1)]


_DECIDE = st.tuples(
    st.just("decide"),
    *(st.integers(1, 20), st.integers(0, 3)),
    *(st.sampled_from([*OUTCOMES]), st.booleans()),
)
STEPS = st.one_of(
    st.tuples(st.just("declare")),
    st.tuples(st.just("post"), st.integers(0, 3), st.sampled_from([*LINKS]), st.booleans()),
    *(_DECIDE, _DECIDE),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
)
BEFORE: list[tuple[Any, ...]] = [("declare",), *(("post", 0, name, True) for name in (*LINKS, *LINKS))]


async def walk(steps: list[tuple[Any, ...]]) -> None:
    """Take steps and check after each; then the client vanishes with its open transactions."""
    async with running_broker() as broker:
        declare(broker.catalog, "/", "one")
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
        declare(broker.catalog, "/", "two", arguments=arguments)
        await settle_down()
        session = await start(broker)
        for handle, name in enumerate(LINKS, 8):
            source = Source(address=f"/queues/{name}", default_outcome=Modified(delivery_failed=True))
            await session.client.send(attach_receiver(handle, name, source=source), credit(handle, ALL))
        taken = Walk(broker, session)
        await taken.look()
        for step in BEFORE + steps:
            match step:
                case ("declare",):
                    await taken.declare()
                case ("post", within, queue, settled):
                    await taken.post(within, queue, settled=settled)
                case ("decide", which, within, outcome, settled):
                    await taken.decide(which, within, outcome, settled=settled)
                case ("end", which, fail):
                    await taken.end(which, fail=fail)
            await taken.look()
        await session.client.vanish()
        await settle_down()
        for name in LINKS:
            messages = taken.model.messages.values()
            left = [each for each in messages if each.queue == name and each.place == "visible"]
            assert queue_counts(broker, name) == (len(left), 0)


@settings(max_examples=300 if LONG else 25, deadline=None)
@given(st.lists(STEPS, min_size=8, max_size=20))
def test_transactions_do_what_is_written_down_of_them(steps: list[tuple[Any, ...]]) -> None:
    """Messages are posted, settled and discharged in any order, plainly and in several transactions."""
    trio.run(walk, steps, clock=MockClock(autojump_threshold=0))
