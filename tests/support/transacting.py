"""Clients with raw frames that use transactions of AMQP 1.0, against a whole broker in this program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.settling import ACCEPTED
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, frame, transfer
from tests.support.trioclient import Client, connect, running_broker, settle_down

CONTROL = 0
LINKS = {"one": 1, "two": 2}


def control(handle: int = CONTROL, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "name": f"control-{handle}",
        "handle": handle,
        "role": False,
        "source": amqp10.Source(),
        "target": amqp10.Coordinator(),
        "initial_delivery_count": 0,
    }
    return frame(0, amqp10.Attach(**given | fields))


def request(
    delivery_id: int, body: amqp10.Declare | amqp10.Discharge, *, handle: int = CONTROL, **fields: Any
) -> bytes:
    payload = b"\x00\x53" + bytes((amqp10.AMQP_VALUE,)) + body.encode()
    return transfer(handle, delivery_id, payload, raw=True, **fields)


class Session:
    """A client with a control link, and links to the queues `one` and `two` to publish on."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.next_id = 0

    async def ask(self, body: amqp10.Declare | amqp10.Discharge, **fields: Any) -> Any:
        number = self.take_id()
        answer = await self.client.call(amqp10.Disposition, request(number, body, **fields))
        assert (answer.role, answer.first, answer.settled) == (True, number, True)
        return answer.state

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    async def declare(self) -> bytes:
        state = await self.ask(amqp10.Declare())
        assert isinstance(state, amqp10.Declared)
        return state.txn_id

    async def refused(self, body: amqp10.Declare | amqp10.Discharge, **fields: Any) -> Any:
        """Return the error with which it is rejected."""
        state = await self.ask(body, **fields)
        assert isinstance(state, amqp10.Rejected)
        return state.error

    async def decide(self, txn_id: bytes, number: int, outcome: Any = ACCEPTED, **fields: Any) -> None:
        state = amqp10.TransactionalState(txn_id=txn_id, outcome=outcome)
        await self.client.send(disposition(number, state=state, **fields))

    async def post(self, txn_id: bytes | None, queue: str, body: bytes = b"m", **fields: Any) -> Any:
        state = None if txn_id is None else amqp10.TransactionalState(txn_id=txn_id)
        number = self.take_id()
        await self.client.send(transfer(LINKS[queue], number, body, state=state, **fields))
        if fields.get("settled"):
            await settle_down()
            return None
        answer = await self.client.until(amqp10.Disposition)
        assert answer.first == number
        return answer.state

    async def consume(self, queue: str, count: int, handle: int = 9) -> list[int]:
        """Return delivery-ids of unsettled consumed messages."""
        source = amqp10.Source(
            address=f"/queues/{queue}", default_outcome=amqp10.Modified(delivery_failed=True)
        )
        await self.client.send(attach_receiver(handle, queue, source=source), credit(handle, count))
        got = await self.client.take(amqp10.Transfer, count)
        return [each.body.delivery_id for each in got]


async def start(broker: Broker, *queues: str, **fields: Any) -> Session:
    """Start a client with its links; the fields are those of its open."""
    session = Session(await connect(broker).open(**fields))
    await session.client.call(amqp10.Flow, control())
    for queue in queues or LINKS:
        await session.client.call(amqp10.Flow, attach_sender(LINKS[queue], f"/queues/{queue}"))
    return session


async def declare_queues(broker: Broker, *more: str) -> None:
    for name in (*LINKS, *more):
        declare(broker.catalog, "/", name)
    await settle_down()


@asynccontextmanager
async def transacting(*queues: str, **settings: Any) -> AsyncIterator[tuple[Broker, Session]]:
    """Give a broker with the queues, and a client with links to all of them, or to some."""
    async with running_broker(**settings) as broker:
        await declare_queues(broker)
        yield broker, await start(broker, *queues)
