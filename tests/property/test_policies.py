"""Policies that come, change and go at random: what each queue was told last is what counts for it."""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqp10broker.errors import NotFound
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.policies import APPLY_TO, Policy, effective
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.queues.commands import Command, Configure
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.routing.exchange import ALTERNATE_EXCHANGE
from tests.support.declaring import declare, declare_exchange, delete_policy, put_policy, remove
from tests.support.examples import tried
from tests.support.queue_handles import FakeHandle

NAMES = st.sampled_from(["a", "ab", "b", "abc"])
PATTERNS = st.sampled_from(["a", "^a", "b", "^b$", ".*", "c$", "no"])
DEFINITIONS = st.dictionaries(
    st.sampled_from(["max-length", "expires", "message-ttl", "delivery-limit"]), st.integers(1, 3), min_size=1
)
ALTERNATES = st.builds(lambda name: {ALTERNATE_EXCHANGE: name}, NAMES)


class Queue(FakeHandle):
    """A queue that knows its settings and whether it was told anything for nothing."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__()
        self.settings: QueueSettings = spec.settings

    def post(self, command: Command) -> None:
        if isinstance(command, Configure):
            assert command.settings != self.settings, "told what it knew"
            self.settings = command.settings


class Policies(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog(self.start_queue)
        self.vhost = self.catalog.lookup_vhost("/")

    def start_queue(self, queue: QueueSpec) -> Queue:
        return Queue(queue)

    @rule(name=NAMES, kind=st.sampled_from(["classic", "quorum"]), length=st.none() | st.integers(1, 3))
    def declare(self, name: str, kind: str, length: int | None) -> None:
        if self.vhost.find(name) is None:
            given = {} if length is None else {"x-max-length": length}
            declare(self.catalog, self.vhost, name, arguments={"x-queue-type": kind, **given})

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        remove(self.catalog, self.vhost, name)

    @rule(name=NAMES, alternate=st.none() | NAMES)
    def declare_exchange(self, name: str, alternate: str | None) -> None:
        if self.vhost.topology.find_exchange(name) is None:
            given = {} if alternate is None else {ALTERNATE_EXCHANGE: alternate}
            declare_exchange(self.catalog, self.vhost, name, "fanout", arguments=given)

    @rule(
        name=st.sampled_from("pqr"),
        pattern=PATTERNS,
        definition=DEFINITIONS | ALTERNATES,
        priority=st.integers(0, 2),
        apply_to=st.sampled_from(APPLY_TO),
    )
    def put(self, name: str, pattern: str, definition: dict[str, Any], priority: int, apply_to: str) -> None:
        put_policy(self.catalog, self.vhost, Policy(name, pattern, definition, priority, apply_to))

    @rule(name=st.sampled_from("pqr"), pattern=PATTERNS, definition=DEFINITIONS)
    def put_operator(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        put_policy(self.catalog, self.vhost, Policy(name, pattern, definition, operator=True))

    @rule(name=st.sampled_from("pqr"), operator=st.booleans())
    def clear(self, name: str, operator: bool) -> None:
        try:
            delete_policy(self.catalog, self.vhost, name, operator=operator)
        except NotFound:
            assert self.vhost.policies.find(name, operator=operator) is None

    @invariant()
    def queues_know_what_counts(self) -> None:
        for queue in self.vhost:
            now = effective(self.vhost.policies, queue.name, queue.type, queue.arguments)
            assert queue.effective == now
            assert isinstance(queue.handle, Queue)
            assert queue.handle.settings == now.settings

    @invariant()
    def exchanges_know_their_alternate(self) -> None:
        for exchange in self.vhost.topology:
            policy = self.vhost.policies.effective(exchange.name, "exchange")
            expected = exchange.arguments.get(ALTERNATE_EXCHANGE)
            if expected is None and exchange.name and policy is not None:
                expected = policy.definition.get(ALTERNATE_EXCHANGE)
            assert exchange.alternate == expected


TestPolicies = Policies.TestCase
TestPolicies.settings = hypothesis_settings(max_examples=tried(60), stateful_step_count=30, deadline=None)
