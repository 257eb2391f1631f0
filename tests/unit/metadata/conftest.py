"""A catalog whose queues are run by nobody."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.metadata.vhost import VirtualHost
from tests.support.handles import IdleHandle


class Host:
    """Remembers what it was asked to run."""

    def __init__(self) -> None:
        self.started: list[QueueSpec] = []

    def start_queue(self, queue: QueueSpec) -> IdleHandle:
        self.started.append(queue)
        return IdleHandle()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def catalog(host: Host) -> Catalog:
    return Catalog(host.start_queue)


@pytest.fixture
def vhost(catalog: Catalog) -> VirtualHost:
    return catalog.vhosts["/"]
