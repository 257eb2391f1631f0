"""An open that is refused is an error to each client, no success (`sessions.amqp10.open.is_of_rabbitmq`).

Of Qpid JMS the same is a case of `tests/jms/Topics.java`; RabbitMQ's client for Python has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import ConnectionException, symbol
from proton.utils import BlockingConnection, ConnectionClosed

from tests.support.broker_process import BrokerProcess
from tests.support.rhea import AskedRhea, need_rhea


@pytest.fixture
def rhea() -> Iterator[AskedRhea]:
    need_rhea()
    started = AskedRhea()
    yield started
    started.close()


def test_rhea_hears_the_reason(broker: BrokerProcess, rhea: AskedRhea) -> None:
    login = f"host: '{broker.host}', port: {broker.port}, username: 'guest', password: 'guest'"
    rhea(f"connect({{{login}, hostname: 'vhost:none'}})")
    rhea.until("heard.length > 0")
    assert rhea("heard")[0] == "connection amqp:unauthorized-access"


@pytest.mark.parametrize(
    ("properties", "error", "says"),
    [
        ({symbol("product"): "a program"}, ConnectionClosed, "virtual host 'none' does not exist"),
        (None, ConnectionException, "connection aborted"),
    ],
    ids=["that says what it is", "that may be RabbitMQ's for Python"],
)
def test_proton_raises(broker: BrokerProcess, properties: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        BlockingConnection(
            f"{broker.host}:{broker.port}",
            user="guest",
            password="guest",
            virtual_host="vhost:none",
            properties=properties,
        )
