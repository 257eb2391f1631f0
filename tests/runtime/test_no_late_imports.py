"""When no file can be opened any more, nothing has to be imported: it was imported at the start."""

from __future__ import annotations

import subprocess
import sys

DECLARE = """
import errno, sys
import trio
from amqp10broker.metadata.users import Permission
from amqp10broker.config import Config
from amqp10broker.queues.commands import ConsumerRef, ReplyTo, Subscribe
from amqp10broker.runtime.broker import Broker

from amqp10broker.metadata.queue_requests import DeclareQueue
from amqp10broker.metadata.vhost_requests import PutUser
from amqp10broker.metadata.users import User

class NoFiles:
    def find_spec(self, name, path=None, target=None):
        raise OSError(errno.EMFILE, "Too many open files", name)

async def main():
    async with Broker(Config(port=0, admin_socket="")) as broker:
        sys.meta_path.insert(0, NoFiles())
        for kind in ("classic", "quorum", "stream"):
            broker.catalog.propose(DeclareQueue("/", kind, arguments={"x-queue-type": kind}))
        record = broker.passwords.make("secret")
        broker.catalog.propose(PutUser(User("ann", record), new=True))
        assert broker.passwords.slow("ann", b"secret")()
        assert not broker.passwords.slow("ann", b"wrong")()
        from amqp10broker.sessions.amqp091.consuming import from_amqp091_arguments
        from amqp10broker.message.filters.filter_set import from_amqp10
        sys.meta_path.pop(0)

trio.run(main)
print("declared")
"""


def test_every_kind_of_queue_and_password_works_when_nothing_can_be_imported() -> None:
    """A process that has used up its files can still declare queues and verify passwords."""
    done = subprocess.run([sys.executable, "-c", DECLARE], capture_output=True, text=True, check=False)
    assert done.stdout == "declared\n", done.stderr
