"""Fixtures of the integration tests: a real broker process, and proton and pika clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess, broker, queue, shared_broker, start_broker
from tests.support.browser import chromium, pages
from tests.support.cluster_process import cluster, shared_cluster
from tests.support.command_line import CommandLine
from tests.support.deadline import deadline
from tests.support.jms import jms
from tests.support.pika_client import channel, connect, connection
from tests.support.proton_client import ProtonClient

__all__ = [
    "broker",
    "channel",
    "chromium",
    "cluster",
    "connect",
    "connection",
    "deadline",
    "jms",
    "pages",
    "queue",
    "shared_broker",
    "shared_cluster",
    "start_broker",
]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture
def clients() -> Iterator[Any]:
    opened: list[ProtonClient] = []

    def connect(to: BrokerProcess, **options: Any) -> ProtonClient:
        client = ProtonClient(to.port, **options)
        opened.append(client)
        return client

    yield connect
    for client in opened:
        client.close()


@pytest.fixture
def client(broker: BrokerProcess, clients: Any) -> ProtonClient:
    connected: ProtonClient = clients(broker)
    return connected


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)
