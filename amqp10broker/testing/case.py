"""A broker for `unittest.TestCase`, run by unittest, pytest or Django's runner."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from amqp10broker.testing.broker import AmqpBroker
from amqp10broker.testing.servers import FRAMES, Servers


class BrokerTestCase(unittest.TestCase):
    """A test case with a virtual host of its own for each test, on a broker in a thread for the class.

    Attributes:
        broker: with the calls and assertions of `docs/testing.md`.
        broker_settings: settings of the broker by name: ``{"max_link_credit": 10}``.
        topology: path of a definitions file, whose queues, exchanges, bindings and policies each test has;
            None: none.
    """

    broker: AmqpBroker
    broker_settings: ClassVar[Mapping[str, Any]] = {}
    topology: ClassVar[str | None] = None
    _servers: ClassVar[Servers]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._servers = Servers([], str(FRAMES), None)
        cls.addClassCleanup(cls._servers.close)

    def setUp(self) -> None:
        super().setUp()
        host = self._servers.host(self.id().rpartition(".")[2], self.broker_settings)
        self.broker = self.enterContext(host)
        if self.topology is not None:
            self.broker.load(self.topology)
