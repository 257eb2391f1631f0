"""Any sequence of changes to a catalog, with restarts in between: what is kept is what is there."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqp10broker.catalog.limits import UserLimits, VhostLimits
from amqp10broker.catalog.policies import Policy
from amqp10broker.catalog.users import PasswordAlgorithm, PasswordRecord, Permission, TopicPermission
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.errors import RefusedError
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.kept_entries import check_kept, kept_catalog, restarted

VHOSTS = ("/", "v")
QUEUES = ("p", "q", "r")
EXCHANGES = ("a", "b", "amq.topic", "amq.headers")
USERS = ("ann", "bob")
PASSWORDS = (None, PasswordRecord(PasswordAlgorithm.ARGON2ID, "$argon2id$x"))
ARGUMENTS: tuple[dict[str, object], ...] = ({}, {"n": 1}, {"n": 1.0}, {"n": b"\xff", "x-match": "any"})

vhosts = st.sampled_from(VHOSTS)
users = st.sampled_from(USERS)
flags = st.booleans()
destinations = st.one_of(
    st.builds(Destination, st.just("queue"), st.sampled_from(QUEUES)),
    st.builds(Destination, st.just("exchange"), st.sampled_from(EXCHANGES)),
)
bindings = st.builds(
    Binding, st.sampled_from(EXCHANGES), destinations, st.sampled_from(("", "k")), st.sampled_from(ARGUMENTS)
)
patterns = st.sampled_from(("", ".*", "^q"))


class KeptCatalogs(RuleBasedStateMachine):
    """Whatever is refused changes nothing; whatever is done is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog, self.kept = kept_catalog()
        self.numbers: dict[int, tuple[str, str]] = {}
        self.deleted: list[VirtualHost] = []

    def vhost(self, name: str) -> VirtualHost:
        """The virtual host, made if it is not there."""
        return self.catalog.find_vhost(name) or self.catalog.add_vhost(name)

    @rule(orderly=flags)
    def restart(self, orderly: bool) -> None:
        """Go on with a catalog that was made of what is kept."""
        if orderly:
            self.catalog.changes.give_numbers_back()
        self.catalog = restarted(self.kept)
        self.deleted.clear()

    @rule(name=vhosts, limit=st.sampled_from((None, 0, 2)), text=st.sampled_from(("", "d")))
    def change_vhost(self, name: str, limit: int | None, text: str) -> None:
        """Facts of a virtual host."""
        vhost = self.vhost(name)
        vhost.set_limits(VhostLimits(max_queues=limit))
        vhost.describe(text, [text] * len(text), {"k": text})

    @rule(name=vhosts)
    def delete_vhost(self, name: str) -> None:
        """With all that is in it; its queues are taken out later."""
        with suppress(RefusedError):
            self.deleted.append(self.catalog.delete_vhost(name))

    @rule(queue=st.sampled_from(QUEUES))
    def take_out_of_a_deleted_one(self, queue: str) -> None:
        """As whoever deletes its queues does."""
        for vhost in self.deleted:
            vhost.remove(queue)

    @rule(name=vhosts, queue=st.sampled_from(QUEUES), durable=flags, auto_delete=flags, exclusive=flags)
    def declare(self, name: str, queue: str, durable: bool, auto_delete: bool, exclusive: bool) -> None:
        """Some survive a restart and some do not."""
        owner = self if exclusive else None
        with suppress(RefusedError):
            made, new = self.vhost(name).declare(
                queue, durable=durable, auto_delete=auto_delete, exclusive_owner=owner
            )
            if new and made.lasting:
                assert made.number not in self.numbers, "a number was given twice"
                self.numbers[made.number] = name, queue
            assert bool(made.number) is made.lasting

    @rule(name=vhosts, queue=st.sampled_from(QUEUES))
    def remove(self, name: str, queue: str) -> None:
        """With its bindings."""
        self.vhost(name).remove(queue)

    @rule(name=vhosts, exchange=st.sampled_from(EXCHANGES), durable=flags, auto_delete=flags)
    def declare_exchange(self, name: str, exchange: str, durable: bool, auto_delete: bool) -> None:
        """The predeclared ones are there already."""
        with suppress(RefusedError):
            self.vhost(name).topology.declare_exchange(
                exchange, "headers", durable=durable, auto_delete=auto_delete
            )

    @rule(name=vhosts, exchange=st.sampled_from(EXCHANGES))
    def delete_exchange(self, name: str, exchange: str) -> None:
        """With its bindings, and what deletes itself thereupon."""
        with suppress(RefusedError):
            self.vhost(name).topology.delete_exchange(exchange)

    @rule(name=vhosts, binding=bindings)
    def bind(self, name: str, binding: Binding) -> None:
        """Between any two."""
        with suppress(RefusedError):
            self.vhost(name).topology.bind(binding)

    @rule(name=vhosts, binding=bindings)
    def unbind(self, name: str, binding: Binding) -> None:
        """The last one may take the exchange along."""
        with suppress(RefusedError):
            self.vhost(name).topology.unbind(binding)

    @rule(name=users, password=st.sampled_from(PASSWORDS), limit=st.sampled_from((None, 1)))
    def add_or_change_user(self, name: str, password: PasswordRecord | None, limit: int | None) -> None:
        """A user that is there gets other facts."""
        if name not in self.catalog.users:
            self.catalog.users.add(name, password)
        self.catalog.users.set_password(name, password)
        self.catalog.users.set_limits(name, UserLimits(max_channels=limit))

    @rule(name=users)
    def delete_user(self, name: str) -> None:
        """With its permissions."""
        with suppress(RefusedError):
            self.catalog.users.delete(name)

    @rule(user=users, vhost=vhosts, pattern=patterns, clear=flags)
    def permit(self, user: str, vhost: str, pattern: str, clear: bool) -> None:
        """Or no more."""
        with suppress(RefusedError):
            if clear:
                self.catalog.users.clear_permission(user, vhost)
                self.catalog.users.clear_topic_permission(user, vhost, "x" if pattern else None)
            else:
                self.catalog.set_permission(user, vhost, Permission(pattern))
                self.catalog.set_topic_permission(user, vhost, "x", TopicPermission(pattern))

    @rule(
        name=vhosts,
        policy=st.sampled_from(("p", "q")),
        operator=flags,
        length=st.integers(0, 1),
        delete=flags,
    )
    def change_policy(self, name: str, policy: str, operator: bool, length: int, delete: bool) -> None:
        """Both kinds have names of their own."""
        policies = self.vhost(name).policies
        with suppress(RefusedError):
            if delete:
                policies.delete(policy, operator=operator)
            else:
                policies.put(Policy(policy, "q", {"max-length": length}, operator=operator))

    @rule(name=vhosts, value=st.sampled_from((1, None, {"a": []})))
    def set_parameter(self, name: str, value: object) -> None:
        """Kept as it is."""
        self.vhost(name)
        self.catalog.set_parameter(name, "shovel", "s", value)
        self.catalog.set_global_parameter("g", value)

    @invariant()
    def is_kept(self) -> None:
        """What was told is what there is, and a restart at this point brings it back."""
        check_kept(self.catalog, self.kept)


TestKeptCatalogs = KeptCatalogs.TestCase
TestKeptCatalogs.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
