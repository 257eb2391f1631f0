"""A catalog whose queues are run by nobody."""

from __future__ import annotations

import pytest

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import QueueSpec
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.queues.commands import Command
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.figures import QueueFigures


class Handle:
    """A queue that takes letters and does nothing.

    Attributes:
        letters: what it was told.
    """

    def __init__(self) -> None:
        self.letters: list[Command] = []

    def post(self, command: Command) -> None:
        """Keep the letter."""
        self.letters.append(command)

    @property
    def counters(self) -> QueueCounters:
        """Nothing happened in it."""
        return QueueCounters()

    def figures(self) -> QueueFigures:
        """Nothing is in it."""
        return QueueFigures()


class Host:
    """Remembers what it was asked to run."""

    def __init__(self) -> None:
        self.started: list[QueueSpec] = []

    def start_queue(self, queue: QueueSpec) -> Handle:
        """Run a queue."""
        self.started.append(queue)
        return Handle()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def catalog(host: Host) -> Catalog:
    return Catalog(host)


@pytest.fixture
def vhost(catalog: Catalog) -> VirtualHost:
    return catalog.vhosts["/"]
