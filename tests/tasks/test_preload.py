"""When no file can be opened any more, nothing has to be imported: it was imported before."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from amqp10broker.tasks.preload import MODULES

PACKAGE = Path(__file__).parents[2] / "amqp10broker"
ROOMS = (
    "amqp10", "amqp091", "catalog", "management", "message", "persistence", "queues", "routing", "security",
    "service", "storage", "tasks",
)  # fmt: skip

LATER = {
    "amqp10broker.tasks.http_api": "is imported ahead by a broker that serves HTTP",
    "amqp10broker.tasks.http_connection": "likewise",
    "amqp10broker.tasks.websocket_door": "likewise, or the first time that it is met at the port of AMQP",
    "amqp10broker.replication.bootstrap": "is imported at start, by a node of a cluster alone",
    "amqp10broker.replication.system_store": "likewise, at start",
    "amqp10broker.tasks.cluster": "likewise, at start",
    "amqp10broker.tasks.node_of_cluster": "likewise, at start",
    "amqp10broker.tasks.key_sets": "is imported at start, where tokens are taken",
    "joserfc": "likewise, at start",
    "joserfc.errors": "likewise, at start",
    "joserfc.jwk": "likewise, at start",
    "amqp10broker.tasks.recorder": "needs pyarrow, and is imported when an operator begins to record",
    "amqp10broker.tasks.faults": "is imported at start, in test mode",
    "amqp10broker.tasks.telemetry": "is imported at start, where traces or metrics are sent",
    "importlib.metadata": "is imported at start, where exchange types of other packages are looked for",
}
"""What is imported inside of functions and not ahead, and why."""

DECLARE = """
import errno, sys
import trio
from amqp10broker.catalog.users import Permission
from amqp10broker.config import Config
from amqp10broker.queues.commands import ConsumerRef, ReplyTo, Subscribe
from amqp10broker.tasks.broker import Broker
from amqp10broker.tasks.preload import preload

from amqp10broker.catalog.queue_requests import DeclareQueue
from amqp10broker.catalog.user_requests import AddUser
from amqp10broker.catalog.users import User

class NoFiles:
    def find_spec(self, name, path=None, target=None):
        raise OSError(errno.EMFILE, "Too many open files", name)

async def main():
    async with Broker(Config(port=0, admin_socket="")) as broker:
        await preload()
        sys.meta_path.insert(0, NoFiles())
        for kind in ("classic", "quorum", "stream"):
            broker.catalog.propose(DeclareQueue("/", kind, arguments={"x-queue-type": kind}))
        record = broker.passwords.make("secret")
        broker.catalog.propose(AddUser(User("ann", record)))
        assert broker.passwords.slow("ann", b"secret")()
        assert not broker.passwords.slow("ann", b"wrong")()
        from amqp10broker.message.filters.consumer_arguments import from_amqp091_arguments
        from amqp10broker.message.filters.filters import from_amqp10
        sys.meta_path.pop(0)

trio.run(main)
print("declared")
"""

LOGIN_MEANWHILE = """
import threading, time
from importlib import _bootstrap
from importlib.machinery import SourceFileLoader
import trio
from amqp10broker.catalog.user_requests import AddUser
from amqp10broker.catalog.users import PasswordAlgorithm, PasswordRecord, User
from amqp10broker.config import Config
from amqp10broker.tasks.broker import Broker
from amqp10broker.tasks.preload import preload

RIGHT = (
    "$argon2id$v=19$m=8,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$"
    "eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHg"
)
answers = []

def create_module(loader, spec):
    if spec.name == "argon2" and threading.current_thread() is threading.main_thread():
        login.start()
        # Until it waits for the lock of a module that this thread holds.
        while not _bootstrap._blocking_on.get(login.ident):
            assert login.is_alive()
            time.sleep(0.001)
    return None  # as loaders of source files do

SourceFileLoader.create_module = create_module

async def main():
    global login
    async with Broker(Config(port=0, admin_socket="")) as broker:
        record = PasswordRecord(PasswordAlgorithm.ARGON2ID, RIGHT)
        broker.catalog.propose(AddUser(User("ann", record)))
        verify = broker.passwords.slow("ann", b"wrong")
        login = threading.Thread(target=lambda: answers.append(verify()))
        await preload()
        login.join()

trio.run(main)
print(answers)
"""


def functions_imports(path: Path) -> Iterator[str]:
    """What functions of a file import."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


def test_whatever_a_serving_broker_imports_in_a_function_is_imported_ahead() -> None:
    """A new import inside of a function has to be added, or has a reason why not."""
    helpers = {"recorder_child.py", "syncer_child.py"}  # processes of their own
    files = [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py") if path.name not in helpers]
    assert len(files) > 150
    found = {name for path in files for name in functions_imports(path)}
    assert found - set(sys.stdlib_module_names) - set(LATER) <= set(MODULES)


def test_every_kind_of_queue_and_password_works_when_nothing_can_be_imported() -> None:
    """As when the files of the process are used up: declaring a quorum queue then was a 541."""
    done = subprocess.run([sys.executable, "-c", DECLARE], capture_output=True, text=True, check=False)
    assert done.stdout == "declared\n", done.stderr


def test_a_login_in_a_thread_may_import_what_is_being_imported_ahead() -> None:
    """The two took the locks of argon2 and of a module in it in opposite order, and the broker ended."""
    done = subprocess.run(
        [sys.executable, "-c", LOGIN_MEANWHILE], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[False]\n", done.stderr


SINGLE = """
import sys
import amqp10broker.tasks.run
print(*sorted(sys.modules))
"""

OURS_MAX = 380
"""Modules of ours that a start imports. A module costs a third of a millisecond: what is not needed before
the first client belongs into `MODULES` (docs/adr/0099)."""

OTHERS = {"attr", "attrs", "greenlet", "idna", "outcome", "sniffio", "sortedcontainers", "structlog", "trio"}
"""Packages of others that a start imports: Trio and structlog with what they need."""

OF_A_CLUSTER = {
    "raft.core", "replication.bootstrap", "replication.groups", "replication.hello", "replication.lanes",
    "replication.member", "replication.system_store", "replication.transactions", "replication.wire",
    "tasks.cluster", "tasks.forming", "tasks.node_of_cluster", "tasks.peers", "tasks.raft_node",
}  # fmt: skip


def test_a_single_node_starts_without_what_only_a_cluster_needs() -> None:
    """It took 38 ms of the start."""
    done = subprocess.run([sys.executable, "-c", SINGLE], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "amqp10broker.tasks.data" in found
    for name in OF_A_CLUSTER:
        assert (PACKAGE / f"{name.replace('.', '/')}.py").exists(), name
    assert found.isdisjoint(f"amqp10broker.{name}" for name in OF_A_CLUSTER)
    ours = {name for name in found if name.partition(".")[0] == "amqp10broker"}
    assert len(ours) <= OURS_MAX
    # What an installation puts into every process is none of ours.
    others = {name.partition(".")[0] for name in found - ours} - set(sys.stdlib_module_names)
    assert {name for name in others if not name.startswith("_")} <= OTHERS
