"""A broker in test mode commits faults on request: it has sessions and channels of `service.faults`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from amqp10broker.catalog.queue import Owner
from amqp10broker.service.channels.channel import BrokerChannel
from amqp10broker.service.faults.parts import FaultyChannel, FaultySession
from amqp10broker.service.faults.table import Faults
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.tasks.connections import Occupied


def faulty(
    surroundings: Occupied,
) -> tuple[Faults, Callable[..., BrokerSession], Callable[..., BrokerChannel]]:
    """The faults of a broker, none yet, and what makes the sessions and channels that commit them."""

    def client_of(owner: object) -> str:
        assert isinstance(owner, Owner)
        return surroundings.connections[owner.connection].client_name

    # A broker has askers when it runs.
    faults = Faults(lambda effects: surroundings.askers.post(effects), client_of)
    return faults, partial(FaultySession, faults), partial(FaultyChannel, faults)
