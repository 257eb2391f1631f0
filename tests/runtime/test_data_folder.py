"""A broker with a data folder comes up with what was declared, and takes of its configuration what is new."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from amqp10broker.config import QueueDeclaration, User
from amqp10broker.errors import ConfigError, DamagedFile, FolderInUse, LimitExceeded, StorageError
from amqp10broker.metadata.catalog import NUMBERS_RESERVED, Catalog
from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.users import PasswordAlgorithm, Permission
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.journal import journal_task
from amqp10broker.runtime.journal.data import FURNISHED, Data
from amqp10broker.runtime.journal.journal_task import RECOVERING_MAX
from amqp10broker.runtime.queues.queue_task import QueueTask
from amqp10broker.storage.disk import Disk
from tests.runtime.conftest import LogRecorder
from tests.support import declaring
from tests.support.catalog_log import durable_part
from tests.support.node import CLASSIC, STREAM, History, Seat
from tests.support.trioclient import quiet_config

pytestmark = pytest.mark.real_clock

Start = Callable[..., Broker]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(**settings: Any) -> Broker:
        return Broker(quiet_config(**{"data_dir": str(tmp_path / "data"), **settings}))

    return make


@pytest.fixture
def data_log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    for module in ("journal.data", "journal.bootstrap"):
        monkeypatch.setattr(f"amqp10broker.runtime.{module}._log", recorder)
    return recorder


def names(catalog: Catalog) -> set[str]:
    return {user.name for user in catalog.users}


async def test_each_start_has_a_number_of_its_own(start: Start, tmp_path: Path) -> None:
    """A first start that did not finish counts too; without a folder the number is 1."""
    async with Broker(quiet_config()) as broker:
        assert broker.reply_registry.incarnation == 1
    Data(Disk(), str(tmp_path / "data")).close()
    for number in (2, 3, 4):
        async with start() as broker:
            assert broker.reply_registry.incarnation == number
            assert broker.reply_registry.open("somebody").id.incarnation == number


# --- what was declared ----------------------------------------------------------------------------


async def test_what_was_declared_is_there_again(start: Start) -> None:
    """Numbers are kept; objects that are not durable are gone."""
    async with start() as broker:
        vhost = declaring.add_vhost(broker.catalog, "shop", limits=VhostLimits(max_queues=5))
        declaring.declare(broker.catalog, vhost, "q", arguments={"x-queue-type": "quorum"})
        declaring.declare(broker.catalog, vhost, "transient", durable=False)
        declaring.declare_exchange(broker.catalog, vhost, "x", "topic")
        declaring.bind(broker.catalog, vhost, Binding("x", Destination("queue", "q"), "a.#"))
        declaring.put_policy(broker.catalog, vhost, Policy("p", "^q", {"delivery-limit": 5}))
        before = durable_part(broker.catalog)
        number = vhost.lookup("q").number
    async with start() as broker:
        assert durable_part(broker.catalog) == before
        vhost = broker.catalog.lookup_vhost("shop")
        assert vhost.find("transient") is None
        queue = vhost.lookup("q")
        assert (queue.number, queue.effective.settings.delivery_limit) == (number, 5)
        assert queue.handle.figures().messages_ready == 0
        assert declaring.declare(broker.catalog, vhost, "new")[0].number == number + 1


async def test_the_log_says_what_recovery_found(start: Start, data_log: LogRecorder) -> None:
    """It has counts and time, and whether a folder is new."""
    async with start() as broker:
        declaring.declare(broker.catalog, "/", "q")
    ((event, _),) = data_log.of("info")
    assert event == "data folder is new"
    async with start():
        pass
    event, fields = data_log.of("info")[-1]
    assert event == "catalog recovered"
    assert (fields["queues"], fields["vhosts"], fields["users"], fields["exchanges"]) == (1, 1, 1, 0)
    assert 0 <= fields["seconds"] < 10
    assert not data_log.of("warning")


class Turns(trio.abc.Instrument):
    """Counts turns of the loop."""

    count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_queues_take_up_what_they_had_some_in_a_turn(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats to other nodes go out in between, since ten thousand queues take seconds."""
    count = 3 * RECOVERING_MAX
    async with start() as broker:
        for number in range(count):
            declaring.declare(broker.catalog, "/", f"q{number}")
    begun: Counter[int] = Counter()
    turns = Turns()
    take_up = QueueTask._take_up

    async def noted(self: QueueTask) -> None:
        begun[turns.count] += 1
        await take_up(self)

    monkeypatch.setattr(QueueTask, "_take_up", noted)
    trio.lowlevel.add_instrument(turns)
    async with start():
        trio.lowlevel.remove_instrument(turns)
    assert sum(begun.values()) == count
    assert max(begun.values()) <= RECOVERING_MAX


@pytest.mark.parametrize("torn", ["catalog/*.log", "inventory.log", "journal/*1.log", "streams/*/*.log"])
async def test_a_torn_end_is_cut_off_and_told(
    start: Start, data_log: LogRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """It is no damage, since it was never durable."""
    monkeypatch.setattr(journal_task, "_log", data_log)
    async with start() as broker:
        for kind in (CLASSIC, STREAM):
            queue, _ = declaring.declare(
                broker.catalog, "/", kind.name, arguments={"x-queue-type": kind.name}
            )
            seat = Seat(queue, History(kind))
            seat.publish(1)
            await seat.effects()
    (path,) = (tmp_path / "data").glob(torn)
    with path.open("ab") as file:
        file.write(bytes(100))
    async with start() as broker:
        for queue in broker.catalog:
            assert queue.handle.figures().messages_ready == 1
    ((_, fields),) = data_log.of("warning")
    assert (fields.get("path", fields.get("file")), fields["bytes"]) == (str(path), 100)


async def test_status_says_where_the_data_is(start: Start, tmp_path: Path) -> None:
    async with start() as broker:
        assert broker.status()["broker"]["data_dir"] == str(tmp_path / "data")
    async with Broker(quiet_config()) as broker:
        assert broker.status()["broker"]["data_dir"] is None


async def test_in_memory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in the tests of a program runs this way."""
    monkeypatch.chdir(tmp_path)
    async with Broker(quiet_config()) as broker:
        assert declaring.declare(broker.catalog, "/", "q")[1]
    assert os.listdir(tmp_path) == []


# --- what the configuration adds ------------------------------------------------------------------


async def test_the_default_user_does_not_come_back_after_it_was_deleted(start: Start) -> None:
    """An administrator who deletes guest must not have to do it at every start."""
    async with start() as broker:
        assert names(broker.catalog) == {"guest"}
        declaring.add_user(broker.catalog, "ann", None)
        declaring.delete_user(broker.catalog, "guest")
    for _ in range(2):
        async with start() as broker:
            assert names(broker.catalog) == {"ann"}
            assert broker.authenticator.anonymous_user == ""
    async with start() as broker:
        declaring.delete_user(broker.catalog, "ann")
    async with start() as broker:
        assert names(broker.catalog) == set()


async def test_a_password_that_was_changed_stays_changed(start: Start, data_log: LogRecorder) -> None:
    """Anonymous clients no longer get in by the default password."""
    async with start() as broker:
        assert broker.authenticator.anonymous_user == "guest"
        record = broker.passwords.make("secret")
        declaring.set_password(broker.catalog, "guest", record)
    async with start() as broker:
        assert broker.catalog.users.lookup("guest").password == record
        assert broker.authenticator.anonymous_user == ""
    assert not data_log.of("warning")


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a folder"])
async def test_anonymous_logs_in_as_a_guest_of_a_definitions_file_with_the_default_password(
    start: Start, tmp_path: Path, in_memory: bool
) -> None:
    """ANONYMOUS is as in RabbitMQ, where `anonymous_login_pass` must be the password of guest."""
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"users": [{"name": "guest", "password": "guest"}]}), encoding="utf-8")
    for _ in range(2):
        async with start(definitions=str(path), **({"data_dir": None} if in_memory else {})) as broker:
            assert broker.authenticator.anonymous_user == "guest"


async def test_anonymous_clients_are_not_let_in_as_a_guest_with_another_password(
    start: Start, tmp_path: Path
) -> None:
    """Neither one of a definitions file nor one of the configuration, also when both are left out later."""
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"users": [{"name": "guest", "password": "secret"}]}), encoding="utf-8")
    async with start(definitions=str(path)) as broker:
        assert broker.authenticator.anonymous_user == ""
    async with start() as broker:
        assert broker.authenticator.anonymous_user == ""
    async with start(data_dir=str(tmp_path / "other"), users=(User("guest", "secret"),)) as broker:
        assert broker.authenticator.anonymous_user == "guest"
    async with start(data_dir=str(tmp_path / "other")) as broker:
        assert broker.authenticator.anonymous_user == ""


async def test_a_default_password_that_was_set_again_is_still_one(start: Start) -> None:
    async with start() as broker:
        declaring.set_password(broker.catalog, "guest", broker.passwords.make("guest"))
    async with start() as broker:
        assert broker.authenticator.anonymous_user == "guest"


async def test_a_later_start_verifies_no_default_password(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check takes 20 ms, and its result is stored."""
    async with start():
        pass
    monkeypatch.setattr("amqp10broker.auth.passwords._hasher", None)
    async with start() as broker:
        assert broker.authenticator.anonymous_user == "guest"


async def test_the_default_user_stays_as_it_is(start: Start) -> None:
    """It keeps tags and permissions; anonymous clients still get in as it."""
    async with start() as broker:
        before = broker.catalog.users.lookup("guest")
        assert before.password.algorithm is PasswordAlgorithm.ARGON2ID
        declaring.set_tags(broker.catalog, "guest", ["monitoring"])
        declaring.set_permission(broker.catalog, "guest", "/", Permission("", "", ".*"))
    async with start() as broker:
        after = broker.catalog.users.lookup("guest")
        assert (after.password, after.tags) == (before.password, ("monitoring",))
        assert broker.catalog.users.granted.get(("guest", "/")) == Permission("", "", ".*")
        assert broker.authenticator.anonymous_user == "guest"


async def test_a_permission_that_was_cleared_stays_cleared(start: Start) -> None:
    async with start() as broker:
        declaring.clear_permission(broker.catalog, "guest", "/")
    async with start() as broker:
        assert broker.catalog.users.granted.get(("guest", "/")) is None


async def test_no_password_stands_in_the_folder_in_plain(start: Start, tmp_path: Path) -> None:
    """A copy of the folder must not be enough to log in."""
    async with start(users=(User("ann", "pencil-case"),), anonymous_login_user=""):
        pass
    text = (tmp_path / "data" / "catalog" / "catalog.log").read_bytes()
    assert b"ann" in text
    assert b"pencil-case" not in text


async def test_a_user_that_is_new_in_the_configuration_is_added(start: Start, data_log: LogRecorder) -> None:
    """It gets all permissions. An existing user keeps its own; the log says that its password differs."""
    async with start() as broker:
        declaring.add_vhost(broker.catalog, "v")
    users = (User("ann", "one"), User("guest", "other"))
    async with start(users=users, anonymous_login_user="ann") as broker:
        assert names(broker.catalog) == {"ann", "guest"}
        assert {vhost for user, vhost, _ in broker.catalog.users.permissions() if user == "ann"} == {"/", "v"}
        assert broker.catalog.users.granted.get(("guest", "v")) is None
        assert broker.passwords.slow("guest", b"guest")()
        assert broker.authenticator.anonymous_user == "ann"
    ((event, fields),) = data_log.of("warning")
    assert "amqp10broker user set-password" in event
    assert fields == {"user": "guest"}


async def test_a_virtual_host_that_is_deleted_stays_deleted(start: Start) -> None:
    """This includes the default one, unless the configuration has objects in it."""
    async with start() as broker:
        declaring.delete_vhost(broker.catalog, "/")
    async with start() as broker:
        assert list(broker.catalog.vhosts) == []
    async with start(queues=(QueueDeclaration("q"),)) as broker:
        assert broker.catalog.lookup_vhost("/").find("q") is not None


async def test_a_virtual_host_that_is_new_in_the_configuration_is_added(start: Start) -> None:
    async with start():
        pass
    async with start(default_vhost="v") as broker:
        assert broker.catalog.users.granted.get(("guest", "v")) == Permission()


async def test_configured_queues_are_declared_once(start: Start) -> None:
    """An existing queue stays as it is; a deleted one is declared again as another queue."""
    queues = (QueueDeclaration("a", arguments={"x-max-length": 1}), QueueDeclaration("t", durable=False))
    async with start(queues=queues) as broker:
        number = broker.catalog.lookup_vhost("/").lookup("a").number
        assert number == 1
    async with start(queues=(QueueDeclaration("a"), *queues[1:])) as broker:
        vhost = broker.catalog.lookup_vhost("/")
        assert vhost.lookup("a").arguments == {"x-max-length": 1, "x-queue-type": "classic"}
        assert vhost.lookup("a").number == number
        assert vhost.find("t") is not None
        declaring.remove(broker.catalog, vhost, "a")
    async with start(queues=queues) as broker:
        assert broker.catalog.lookup_vhost("/").lookup("a").number == 2


async def test_a_definitions_file_is_applied_at_every_start(start: Start, tmp_path: Path) -> None:
    """As with RabbitMQ's load_definitions, its objects are restored, and other objects stay."""
    path = tmp_path / "definitions.json"
    document = {
        "users": [{"name": "ann", "password_hash": "", "tags": ["monitoring"]}],
        "vhosts": [{"name": "/"}, {"name": "v"}],
        "permissions": [{"user": "ann", "vhost": "v", "configure": "", "write": "", "read": "^a"}],
        "queues": [{"name": "q", "vhost": "v"}],
        "bindings": [{"source": "amq.topic", "vhost": "v", "destination": "q", "destination_type": "queue"}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    async with start(definitions=str(path)) as broker:
        assert names(broker.catalog) == {"ann"}
        before = durable_part(broker.catalog)
    async with start(definitions=str(path)) as broker:
        assert durable_part(broker.catalog) == before
        declaring.set_tags(broker.catalog, "ann", [])
        declaring.add_user(broker.catalog, "bob", None)
        declaring.remove(broker.catalog, "v", "q")
    async with start(definitions=str(path)) as broker:
        assert broker.catalog.users.lookup("ann").tags == ("monitoring",)
        assert names(broker.catalog) == {"ann", "bob"}
        assert broker.catalog.lookup_vhost("v").lookup("q").number == 2
        assert len(broker.catalog.lookup_vhost("v").topology.bindings()) == 1


async def test_a_user_of_file_and_configuration_is_the_same_at_every_start(
    start: Start, tmp_path: Path
) -> None:
    """The configuration is applied after the file, the first time and every time."""
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"users": [{"name": "ann", "password_hash": ""}]}), encoding="utf-8")
    for _ in range(2):
        async with start(
            definitions=str(path), users=(User("ann", "secret"),), anonymous_login_user=""
        ) as broker:
            assert broker.passwords.slow("ann", b"secret")()
            assert broker.catalog.users.granted.get(("ann", "/")) == Permission()


# --- when it goes wrong ---------------------------------------------------------------------------


async def test_a_first_start_that_fails_leaves_a_first_start(start: Start, tmp_path: Path) -> None:
    """The mended configuration is then applied as at a first start."""
    path = tmp_path / "definitions.json"
    path.write_text('{"permissions": [{"user": "q", "vhost": "nowhere"}]}', encoding="utf-8")
    with pytest.RaisesGroup(ConfigError):
        async with start(definitions=str(path), default_vhost="v"):
            pytest.fail("the broker came up")
    for _ in range(2):
        async with start() as broker:
            assert names(broker.catalog) == {"guest"}
            assert list(broker.catalog.vhosts) == ["/"]


async def test_a_folder_is_for_one_broker(start: Start) -> None:
    """The other's error names the process that has it. After its end, the other may have it."""
    async with start():
        with pytest.raises(FolderInUse, match=r"is in use by process \d+; stop that broker"):
            async with start():
                pytest.fail("two brokers came up")
    async with start() as broker:
        assert names(broker.catalog) == {"guest"}


async def test_a_damaged_catalog_stops_the_start(start: Start, tmp_path: Path) -> None:
    """The error has file, offset and remedy; the folder is released."""
    async with start() as broker:
        declaring.declare(broker.catalog, "/", "q")
    path = tmp_path / "data" / "catalog" / "catalog.log"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[70] ^= 1
    path.write_bytes(bad)
    with pytest.raises(DamagedFile, match=r"catalog\.log at offset 32: .*; nothing was changed; restore"):
        async with start():
            pytest.fail("the broker came up")
    path.write_bytes(good)
    async with start() as broker:
        assert broker.catalog.lookup_vhost("/").find("q") is not None


async def test_an_entry_that_cannot_be_restored_stops_the_start(start: Start, tmp_path: Path) -> None:
    """An exchange type may come with a package that is gone."""
    async with start():
        pass
    data = Data(Disk(), str(tmp_path / "data"))
    exchange = {
        "name": "x", "vhost": "/", "type": "x-gone", "durable": True, "auto_delete": False,
        "internal": False, "arguments": {},
    }  # fmt: skip
    data.catalog_log.put([(("exchange", "/", "x"), exchange)])
    data.close()
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="exchange '/' 'x' cannot be restored")):
        async with start():
            pytest.fail("the broker came up")


async def test_something_else_is_no_data_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter.txt").write_text("dear all")
    with pytest.raises(StorageError, match="is not a data folder of amqp10broker, and is not empty"):
        async with start():
            pytest.fail("the broker came up")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["letter.txt"]


async def test_what_cannot_be_kept_is_refused_while_the_broker_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk clients get an error, and existing objects stay usable."""
    async with start() as broker:
        vhost = broker.catalog.lookup_vhost("/")
        declaring.declare(broker.catalog, vhost, "a")

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write", full)
            with pytest.raises(LimitExceeded, match="No space left on device"):
                declaring.declare(broker.catalog, vhost, "b")
            assert declaring.declare(broker.catalog, vhost, "t", durable=False)[1]
            declaring.remove(broker.catalog, vhost, "a")
        declaring.declare(broker.catalog, vhost, "c")
    async with start() as broker:
        assert set(broker.catalog.lookup_vhost("/").queues) == {"c"}


async def test_the_group_commit_is_told_of_changes(start: Start) -> None:
    async with start() as broker:
        log = broker.data.catalog_log
        assert FURNISHED in log
        assert log.fds_to_sync() == []
        told: list[list[int]] = []
        broker.data.when_written = lambda: told.append(log.fds_to_sync())
        declaring.declare_exchange(broker.catalog, "/", "x")
        assert [len(fds) for fds in told] == [1]


async def test_numbers_of_queues_go_on_where_they_were(start: Start, tmp_path: Path) -> None:
    """They do so after an orderly end; after a crash some are skipped, so that none is used twice."""
    async with start() as broker:
        assert declaring.declare(broker.catalog, "/", "a")[0].number == 1
        log = tmp_path / "data" / "catalog" / "catalog.log"
        known = tmp_path / "data" / "inventory.log"
        as_killed, known_then = log.read_bytes(), known.read_bytes()
    async with start() as broker:
        assert declaring.declare(broker.catalog, "/", "b")[0].number == 2
    log.write_bytes(as_killed)
    known.write_bytes(known_then)
    async with start() as broker:
        assert broker.catalog.lookup_vhost("/").lookup("a").number == 1
        assert declaring.declare(broker.catalog, "/", "b")[0].number == NUMBERS_RESERVED + 1
