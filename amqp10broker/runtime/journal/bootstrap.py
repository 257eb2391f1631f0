"""The initial content of a broker: the users, virtual hosts and queues of its configuration.

`Contents` is a dry run of a start on the records of a data folder, for `storage check`. The catalog is
declared without running queues, and each classic and quorum queue reads its records of the journal as at a
start. In a folder of a cluster's node the catalog is the applied state of its member of the system group, and
the queues are those with records here. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from amqp10broker.auth.passwords import Passwords, plain_record
from amqp10broker.cluster.bootstrap import ClusterIdentity
from amqp10broker.cluster.transactions import SystemStore, is_member, left_alone
from amqp10broker.config import Config
from amqp10broker.config.settings import DEFAULT_USERS
from amqp10broker.config.settings import User as ConfiguredUser
from amqp10broker.errors import BrokerError, ConfigError, LimitExceeded, StorageError
from amqp10broker.metadata.catalog import VHOST, Catalog, Value, restore
from amqp10broker.metadata.definitions import ImportDefinitions, due_of, importing, without_due
from amqp10broker.metadata.patterns import fault_of
from amqp10broker.metadata.plan import CLUSTER_TAGS, Key, VhostFacts
from amqp10broker.metadata.queue import CLASSIC, QUORUM, STREAM, DeclaredQueue
from amqp10broker.metadata.queue_requests import DeclareQueue
from amqp10broker.metadata.users import PasswordRecord, Permission, User
from amqp10broker.metadata.vhost_requests import ChangeUser, PutUser, PutVhost, SetParameter, SetPermission
from amqp10broker.queues.classic.durability import ClassicStore
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.quorum.commands import CONFIG
from amqp10broker.queues.quorum.log_store import FOUNDER, QuorumStore
from amqp10broker.queues.stream.durability import StreamCommits
from amqp10broker.raft.ids import is_first, node_of
from amqp10broker.runtime.journal.data import FURNISHED, MEMBERSHIP, OF_THE_NODE, Data, last_incarnation
from amqp10broker.runtime.log import Log
from amqp10broker.storage.disk import Scratch
from amqp10broker.storage.record import Record

_NOW_MS: Final = 0


class Contents:
    def __init__(self) -> None:
        self.streams: Collection[int] = ()
        self._stores: dict[int, ClassicStore | QuorumStore | StreamCommits] = {}
        self._queues: dict[int, DeclaredQueue] = {}
        self._journal = _Nowhere()

    def declare(self, path: str, entries: Iterable[tuple[Key, Value]]) -> None:
        """Declare the content of the catalog. Raises `StorageError` if a start would."""
        found = _Entries(entries)
        if is_member(found):
            node, declared = _of_cluster(path, found)
        elif FURNISHED not in found:
            return  # a first start that was not completed: the next one begins again
        else:
            node, declared = 0, [entry for entry in found.items() if entry[0] not in OF_THE_NODE]
        try:
            catalog = Catalog()
            restore(catalog, declared)
        except ConfigError as error:
            raise StorageError(path, str(error), "nothing was changed") from error
        self._queues = {queue.number: queue for queue in catalog if _is_here(queue, node)}
        self.streams = {number for number, queue in self._queues.items() if queue.kind.own_files}
        incarnation = last_incarnation(found.get) + 1
        for number, queue in self._queues.items():
            if queue.type == CLASSIC.name:
                self._stores[number] = ClassicStore(number, self._journal, Spool(_no_scratch))
            elif queue.type == QUORUM.name:
                self._stores[number] = _quorum_store(queue, self._journal, node, incarnation)
            elif queue.type == STREAM.name:
                self._stores[number] = StreamCommits(number, self._journal)

    def take(self, records: Sequence[Record]) -> None:
        """Pass records of the journal to their queues, in order. Raises `DamagedFile`."""
        for record in records:
            store = self._stores.get(record.group)
            if store is not None:
                self._journal.note(record)
                store.restore([record])

    def faults(self) -> Iterator[StorageError]:
        for number, store in self._stores.items():
            if isinstance(store, QuorumStore):
                try:
                    store.recovered(self._queues[number].effective.settings, _NOW_MS)
                except StorageError as error:
                    yield error


class _Entries(dict[Key, Value]):
    """The entries of a catalog's log, read-only."""

    def entries(self) -> Iterator[tuple[Key, Value]]:
        return iter(self.items())

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        raise AssertionError("nothing is written")

    def when_durable(self, told: Callable[[], None]) -> None:
        raise AssertionError("nothing is written")


def _of_cluster(path: str, log: _Entries) -> tuple[int, list[tuple[Key, Value]]]:
    try:
        found: Any = log.get(MEMBERSHIP)
        number = ClusterIdentity.of(found).number
        SystemStore(log)
        return number, left_alone(log)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            path,
            f"what it says of the cluster cannot be understood: {error}",
            "nothing was changed: start the version that wrote it",
        ) from error


def _is_here(queue: DeclaredQueue, node: int) -> bool:
    return not node or queue.home == node or node in map(node_of, queue.members)


def _quorum_store(queue: DeclaredQueue, journal: _Nowhere, node: int, incarnation: int) -> QuorumStore:
    me = next((member for member in queue.members if node_of(member) == node), FOUNDER)
    return QuorumStore(
        queue.number,
        queue.name,
        journal,
        when_durable=lambda *_: None,
        me=me,
        members=[member for member in queue.members if is_first(member)],
        joins=not is_first(me),
        node=node,
        incarnation=incarnation,
    )


class _Nowhere:
    """A journal that discards records and has none: they were read already. Only changes of members are
    stored, which a member reads when it has all its records.
    """

    def __init__(self) -> None:
        self._changes: dict[tuple[int, int], bytes] = {}
        self._end = 0

    def note(self, record: Record) -> None:
        if record.kind == CONFIG:
            self._changes[record.file, record.offset] = record.payload

    def append(
        self, group: int, kind: int, index: int, payload: Sequence[bytes], *, term: int = 0
    ) -> tuple[int, int, int]:
        self._end += 1
        if kind == CONFIG:
            self._changes[0, self._end] = b"".join(payload)
        return 0, 0, self._end

    def read(self, file: int, offset: int) -> bytes:
        return self._changes[file, offset]

    def read_run(self, file: int, offset: int, length: int) -> Sequence[Record]:
        raise AssertionError("nothing is read again")

    def add_live(self, file: int, length: int) -> None: ...

    def add_dead(self, file: int, length: int) -> None: ...


def _no_scratch() -> Scratch:
    raise OSError("nothing is written")


_log = Log("amqp10broker.broker")

ADMINISTRATOR: Final = "administrator"


def bootstrap_folder(
    catalog: Catalog, config: Config, passwords: Passwords, data: Data, *, queues_later: bool = False
) -> frozenset[str]:
    """As `bootstrap`, for a catalog with a data folder; also raises `StorageError`."""
    try:
        given = data.load(catalog, passwords.exportable)
        names = bootstrap(catalog, config, passwords, given, queues_later=queues_later)
        if given is None:
            data.furnished(default_records(catalog, config, names))
    except LimitExceeded as error:
        if isinstance(error.__cause__, StorageError):
            # No client requested it: the start is refused, and the error describes the remedy.
            raise error.__cause__ from None
        raise
    data.catalog_log.sync()
    return names


def bootstrap(
    catalog: Catalog,
    config: Config,
    passwords: Passwords,
    given: Mapping[str, str] | None = None,
    *,
    queues_later: bool = False,
) -> frozenset[str]:
    """Apply the configuration to a catalog.

    Configured users may do everything in every virtual host that exists at start. The default users and
    virtual host are left out where a definitions file names the users: its administrator may have deleted
    guest, or given it another password.

    A broker that starts again with a data folder has its former content. The definitions file is applied
    again. Of the rest only what does not exist is added: a user's password and permissions stay, and the
    default users and the virtual host ``/`` are not restored after they were deleted.

    `given`: None at the first start; later the result of `default_records` at that start. `queues_later`:
    queues and bindings are checked, and not declared (`DeclareDue` declares them). Returns the names of the
    configuration's users that exist now with the password that it gives. Raises `ConfigError` if the
    definitions file cannot be read or applied.
    """
    again = given is not None
    before = _Before()
    if again:
        before = _Before(
            frozenset(catalog.vhosts),
            {user.name: user.password for user in catalog.users},
            {(user, vhost): each for user, vhost, each in catalog.users.permissions()},
        )
    wanted = not again or config.default_vhost != VHOST or bool(config.queues)
    if wanted and catalog.vhosts.get(config.default_vhost) is None:
        catalog.propose(PutVhost(VhostFacts(config.default_vhost), new=True))
    if not again:
        catalog.propose(SetParameter(("global_parameter", CLUSTER_TAGS), {}))
    if config.definitions is not None:
        import_file(catalog, config.definitions, passwords.make, queues_later=queues_later)
    names = _bootstrap_users(catalog, config, passwords, before, given)
    if queues_later:
        with naming_the_file(config.definitions):
            tell_left_out(due_now(config, catalog).plan(catalog).answer.skipped)
        return names
    for queue in config.queues:
        vhost = catalog.lookup_vhost(config.default_vhost)
        if not (again and queue.name in vhost.queues):
            catalog.propose(DeclareQueue(vhost.name, queue.name, queue.durable, arguments=queue.arguments))
    return names


def configured_users(config: Config, passwords: Passwords) -> frozenset[str]:
    """Return the configuration's users that exist with the password that it gives. It is slow."""
    return frozenset(user.name for user in config.users if _is_password(passwords, user))


def default_records(catalog: Catalog, config: Config, names: Iterable[str]) -> dict[str, str]:
    """Return the records with the default users' default passwords, by name. While such a record is
    unchanged, so is the password, and later starts need not verify it, which is slow on purpose.
    """
    if config.users != DEFAULT_USERS:
        return {}
    found = (catalog.users.by_name.get(name) for name in names)
    return {
        user.name: user.password.value for user in found if user is not None and user.password is not None
    }


def tell_idle_patterns(catalog: Catalog) -> None:
    """Log the old patterns of permissions and policies that match nothing."""
    for owner, pattern in _patterns(catalog):
        fault = fault_of(pattern)
        if fault is not None:
            _log.warning("a pattern finds nothing; set another", owner=owner, fault=fault)


def _patterns(catalog: Catalog) -> Iterator[tuple[str, str]]:
    for user, vhost, permission in catalog.users.permissions():
        for pattern in (permission.configure, permission.write, permission.read):
            yield f"permissions of user '{user}' in vhost '{vhost}'", pattern
    for user, vhost, exchange, topic in catalog.users.topic_permissions():
        for pattern in (topic.write, topic.read):
            yield f"topic permissions of user '{user}' at exchange '{exchange}' in vhost '{vhost}'", pattern
    for name, home in catalog.vhosts.items():
        for policy in home.policies:
            yield f"policy '{policy.name}' in vhost '{name}'", policy.pattern


class _Before(NamedTuple):
    """The content of a catalog before the configuration was applied."""

    vhosts: frozenset[str] = frozenset()
    passwords: Mapping[str, PasswordRecord | None] = {}
    permissions: Mapping[tuple[str, str], Permission] = {}


def _bootstrap_users(
    catalog: Catalog, config: Config, passwords: Passwords, before: _Before, given: Mapping[str, str] | None
) -> frozenset[str]:
    again, default = given is not None, config.users == DEFAULT_USERS
    if default and not again and len(catalog.users):
        # A definitions file has brought users: guest is among them, or it is not there.
        return configured_users(config, passwords)
    names: set[str] = set()
    for user in config.users:
        present = catalog.users.by_name.get(user.name)
        if present is None and default and again:
            continue
        there = user.name in before.passwords
        if present is not None and there and before.passwords[user.name] == present.password:
            record = present.password
            is_default = default and record is not None and record.value == (given or {}).get(user.name)
            if is_default or _is_password(passwords, user):
                names.add(user.name)
            elif not default:
                _log.warning(
                    "user keeps the password of the data folder, which is not that of the configuration; "
                    "change it with: amqp10broker user set-password",
                    user=user.name,
                )
        else:
            # Data folders only store hashes.
            make = passwords.make if catalog.changes.recorder is not None else plain_record
            if present is None:
                tags = (ADMINISTRATOR,)
                catalog.propose(PutUser(User(user.name, make(user.password), tags), new=True))
            else:
                catalog.propose(ChangeUser(user.name, {"password": make(user.password)}))
            names.add(user.name)
        for name in catalog.vhosts:
            own, kept = (user.name, name), there and name in before.vhosts
            if not kept or before.permissions.get(own) != catalog.users.granted.get(own):
                catalog.propose(SetPermission(user.name, name, Permission()))
    return frozenset(names)


def _is_password(passwords: Passwords, user: ConfiguredUser) -> bool:
    password = user.password.encode()
    return passwords.quick(user.name, password) or passwords.slow(user.name, password)()


TOLD_MAX: Final = 50
"""The number of entries of a document that are logged one by one."""


def import_file(
    catalog: Catalog, path: str, make_password: Callable[[str], PasswordRecord], *, queues_later: bool
) -> None:
    """Import a definitions file, all or nothing; omitted parts are logged. Raises `ConfigError`."""
    document = _document(path)
    with naming_the_file(path):
        request = importing(document, make_password=make_password)
        report = catalog.propose(without_due(request) if queues_later else request)
    tell_left_out(report.skipped)


def tell_left_out(reasons: Sequence[str]) -> None:
    """Log the parts of a document of definitions that were left out."""
    for reason in reasons[:TOLD_MAX]:
        _log.warning("left out of the definitions", reason=reason)
    if len(reasons) > TOLD_MAX:
        _log.warning("more was left out of the definitions", count=len(reasons) - TOLD_MAX)


@contextmanager
def naming_the_file(path: str | None) -> Iterator[None]:
    """Name the file, if there is one, in errors raised inside the block."""
    try:
        yield
    except BrokerError as error:
        if path is None:
            raise
        source = f"definitions file {path}"
        raise ConfigError(source, f"cannot be imported: {error}", "nothing of it was taken over") from error


def due_now(config: Config, catalog: Catalog) -> ImportDefinitions:
    """Return queues and bindings due later that do not exist. Raises `ConfigError` if the file cannot be
    read.
    """
    document = {} if config.definitions is None else _document(config.definitions)
    vhost = catalog.lookup_vhost(config.default_vhost) if config.queues else None
    queues = [
        {
            "vhost": config.default_vhost,
            "name": queue.name,
            "durable": queue.durable,
            "arguments": dict(queue.arguments),
        }
        for queue in config.queues
        if vhost is not None and vhost.find(queue.name) is None
    ]
    return due_of(document, queues)


def _document(path: str) -> Any:
    source = f"definitions file {path}"
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ConfigError(source, f"cannot be read: {error.strerror}", "must be a JSON file") from error
    except ValueError as error:
        raise ConfigError(
            source,
            f"is not JSON: {error}",
            "give a file of 'amqp10broker definitions export' or 'rabbitmqctl export_definitions'",
        ) from error
