"""A catalog whose queues are run by nobody."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.vhost import VirtualHost
from tests.support.catalog_log import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def catalog(host: FakeHost) -> Catalog:
    return Catalog(host.start_queue)


@pytest.fixture
def vhost(catalog: Catalog) -> VirtualHost:
    return catalog.vhosts["/"]
