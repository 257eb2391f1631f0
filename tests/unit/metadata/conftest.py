"""A catalog whose queues are run by nobody."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.vhost import VirtualHost
from tests.support.kept_entries import Host


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def catalog(host: Host) -> Catalog:
    return Catalog(host.start_queue)


@pytest.fixture
def vhost(catalog: Catalog) -> VirtualHost:
    return catalog.vhosts["/"]
