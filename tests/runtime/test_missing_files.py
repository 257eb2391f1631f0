"""Whatever is missing from a data folder is told: by `storage check` and by a start, which always agree.

The folder is a whole broker's (`tests.support.node`): classic queues, quorum queues and streams, each with
several files.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.runtime.broker import Broker
from amqp10broker.storage.check import accept_folder
from amqp10broker.storage.folder import open_data_folder
from amqp10broker.storage.record import HEADER_BYTES
from tests.support.disks import SimDisk
from tests.support.journal_harness import LONG
from tests.support.node import CONFIG, FOLDER, KINDS, History, Node, NoMeter, Seat, faults_of

STEPS: Final = 40


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(monkeypatch)
    rng = random.Random(0)
    for _ in range(6):
        node.live(rng, STEPS)
        assert node.refused is None
    paths = [path.removeprefix(FOLDER) for path in node.disk.paths(FOLDER)]
    for beginning, at_least in (("/journal/", 2), ("/streams/", 2), ("/catalog/", 1)):
        assert sum(path.startswith(beginning) for path in paths) >= at_least, paths
    return node


class Verdicts:
    """What check and start say of changed copies of a folder."""

    def __init__(self, node: Node, disk: SimDisk | None = None, *, forgiving: bool = False) -> None:
        """Check the node's folder, or another disk; forgiving skips the check of the promises."""
        self._node = node
        self._disk, self._queues, self._made = disk or node.disk, node.queues, node.made
        self._forgiving = forgiving

    def of(self, change: Callable[[SimDisk], None]) -> tuple[list[StorageError], StorageError | None]:
        """Return the check's errors and the start's error; without the latter, every promise is kept."""
        node = self._node
        disk = self._disk.after_kill()
        change(disk)
        before = [(path, disk.contents(path)) for path in disk.paths(FOLDER)]
        faults = faults_of(disk)
        assert before == [(path, disk.contents(path)) for path in disk.paths(FOLDER)], "check has changed it"
        node.disk = disk
        node.queues = copy.deepcopy(self._queues)
        node.made = self._made
        if self._forgiving:
            node.queues = {
                name: History(history.kind, published=history.published, consumed=True)
                for name, history in node.queues.items()
            }
        node.live(random.Random(0), 0)
        return faults, node.refused

    def agree(self, change: Callable[[SimDisk], None]) -> StorageError | None:
        faults, refused = self.of(change)
        assert bool(faults) == (refused is not None), (faults, refused)
        if refused is not None:
            assert str(refused) in {str(fault) for fault in faults}, (faults, refused)
        return refused


def _files(node: Node) -> list[str]:
    # Whoever holds the folder is no content: a lock is made anew. The journal's last file was made in
    # advance if it has nothing but a header, and is made anew as well.
    paths = [path for path in node.disk.paths(FOLDER) if not path.endswith("/lock")]
    last = max(path for path in paths if "/journal/" in path)
    return [path for path in paths if path != last or len(node.disk.contents(path)) > HEADER_BYTES]


def test_a_folder_as_it_was_left_has_no_fault(node: Node) -> None:
    assert Verdicts(node).agree(lambda disk: None) is None


def test_whichever_file_is_missing_is_told(node: Node) -> None:
    delivery_outcomes = Verdicts(node)
    for path in _files(node):
        refused = delivery_outcomes.agree(lambda disk, path=path: disk.unlink(path))
        assert isinstance(refused, DamagedFile), path
        assert refused.path == path
        assert "missing" in refused.problem
        assert "copy" in refused.remedy


def test_whichever_file_is_cut_is_told(node: Node) -> None:
    """Files are cut by some bytes, to half, to the header, to nothing; a cut inventory may be a torn end."""
    delivery_outcomes = Verdicts(node)
    rng = random.Random(1)
    for path in _files(node):
        size = len(node.disk.contents(path))
        sizes = {
            0,
            32,
            size // 2,
            size - 7,
            size - 1,
            *(rng.randrange(size) for _ in range(20 if LONG else 2)),
        }
        for left in sorted(left for left in sizes if left < size):
            refused = delivery_outcomes.agree(
                lambda disk, path=path, left=left: disk.overwrite(path, disk.contents(path)[:left])
            )
            if refused is None:
                assert path.endswith(("/inventory.log", ".log")), (path, left)
                assert path.endswith("/inventory.log") or size <= 32, (path, left)
            else:
                assert path in str(refused) or path.endswith("/inventory.log"), (path, left, refused)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_an_end_of_the_catalog_that_is_cut_off_after_a_kill_under_steady_load_is_told(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each declaration was durable long before, whether or not the journal has since had a quiet second."""
    node = Node(monkeypatch, kinds=[each for each in KINDS if each.name == kind])
    killed: list[SimDisk] = []

    async def work() -> None:
        async with Broker(CONFIG, meter=NoMeter()) as broker:
            name = node._declare(broker.catalog, random.Random(0))
            seat = Seat(broker.catalog.lookup_vhost("/").lookup(name), node.queues[name])
            for _ in range(50):
                seat.publish(1)
                await trio.sleep(0.2)
            await seat.listen()
            assert seat.history.promised
            killed.append(node.disk.after_kill())

    trio.run(work, clock=MockClock(autojump_threshold=0))
    path = f"{FOLDER}/catalog/catalog.log"
    for cut in (1, 10, 100, 250):
        refused = Verdicts(node, killed[0]).agree(
            lambda disk, cut=cut: disk.overwrite(path, disk.contents(path)[:-cut])
        )
        assert isinstance(refused, DamagedFile)
        assert refused.path == path


@pytest.mark.parametrize("folder", ["journal", "catalog", "streams"])
def test_a_folder_that_is_missing_is_told(node: Node, folder: str) -> None:
    def remove(disk: SimDisk) -> None:
        _remove(disk, f"{FOLDER}/{folder}")

    refused = Verdicts(node).agree(remove)
    assert isinstance(refused, DamagedFile)
    assert f"{FOLDER}/{folder}/" in refused.path


def test_a_stream_whose_folder_is_missing_is_told(node: Node) -> None:
    delivery_outcomes = Verdicts(node)
    for name in node.disk.names(f"{FOLDER}/streams"):
        refused = delivery_outcomes.agree(lambda disk, name=name: _remove(disk, f"{FOLDER}/streams/{name}"))
        assert refused.path.startswith(f"{FOLDER}/streams/{name}/")


def test_all_that_is_missing_is_told_by_check(node: Node) -> None:
    paths = _files(node)
    gone = [path for path in paths if "/journal/" in path or "/streams/" in path]
    faults, refused = Verdicts(node).of(lambda disk: [disk.unlink(path) for path in gone] and None)
    assert {fault.path for fault in faults} == set(gone)
    assert refused is not None


def test_what_is_accepted_is_told_no_more_and_the_rest_is_there(node: Node) -> None:
    """The rule holds for each file of the journal and streams."""
    base = node.disk.after_kill()
    for path in [path for path in _files(node) if "/journal/" in path or "/streams/" in path]:
        disk = base.after_kill()
        disk.unlink(path)
        folder = open_data_folder(disk, FOLDER, "a test")
        given_up = list(accept_folder(disk, folder))
        folder.close()
        assert any(path in each for each in given_up)
        delivery_outcomes = Verdicts(node, disk, forgiving=True)
        refused = delivery_outcomes.agree(lambda disk: None)
        # A quorum queue is not begun without messages that it should have.
        assert refused is None or "in no record" in str(refused), (path, refused)
        told = delivery_outcomes.agree(lambda disk: None)
        assert str(told) == str(refused)


def test_a_lost_inventory_is_made_anew_when_that_is_accepted(node: Node) -> None:
    disk = node.disk.after_kill()
    disk.unlink(f"{FOLDER}/inventory.log")
    folder = open_data_folder(disk, FOLDER, "a test", without_inventory=True)
    assert list(accept_folder(disk, folder)) == []
    folder.close()
    assert not faults_of(disk)
    node.disk = disk
    node.live(random.Random(0), STEPS)
    assert node.refused is None
    path = next(path for path in _files(node) if "/journal/" in path)
    assert Verdicts(node).agree(lambda disk: disk.unlink(path)) is not None


def _remove(disk: SimDisk, folder: str) -> None:
    for path in disk.paths(folder):
        disk.unlink(path)
    for name in disk.names(folder):
        disk.remove_folder(f"{folder}/{name}")
    disk.remove_folder(folder)
