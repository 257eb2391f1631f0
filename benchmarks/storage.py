"""What does it cost to make a record durable, and to read it again?

Nothing is sent: the broker's journal, committer and sync helper run in this process, on files in the
directory given (`--storage-dir`; the present one). Batches of 1, 16 and 256 records of 150 bytes are
appended, and each batch waits until it is durable. The floor writes the same bytes with one `os.write` and
one `os.fdatasync` a batch, and does nothing else: the rate of commits is the disk's there. Reading is what
a start does with a journal of a million records (a hundred thousand with --quick). CPU is this process's;
the helper's is not counted.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from amqp10broker.storage.disk import OsDisk
from amqp10broker.storage.folder import DataFolder, open_data_folder
from amqp10broker.storage.journal import Journal
from amqp10broker.storage.record import RECORD_BYTES
from amqp10broker.tasks.committer import Committer
from amqp10broker.tasks.journal_task import journal_sizes
from amqp10broker.tasks.syncer import open_syncer
from benchmarks.errors import MeasureError
from benchmarks.measure import Benchmark, Context, options
from benchmarks.results import Outcome, Row

_COLUMNS: Final = ("rate_per_s", "cpu_us", "commits_per_s", "confirm_p50_ms", "confirm_p99_ms")
_HEAD: Final = bytes(50)
_BODY: Final = bytes(range(100))
_RECORDS: Final = 1_000_000
_RECORDS_QUICK: Final = 100_000


class _Window:
    """Counts commits from the end of the warm-up to the end."""

    def __init__(self, context: Context, batch: int) -> None:
        self._batch = batch
        self._begin = time.perf_counter() + context.warmup_s
        self._end = self._begin + context.duration_s
        self._cpu = 0.0
        self._began = 0.0
        self._took: list[float] = []

    def note(self, began: float, ended: float) -> bool:
        """Count a commit; whether there is time for another."""
        if not self._began:
            if ended >= self._begin:
                self._began, self._cpu = ended, time.process_time()
            return True
        self._took.append(ended - began)
        return ended < self._end

    def row(self, case: str, target: str) -> Row:
        """The sample."""
        seconds = time.perf_counter() - self._began
        cpu_s = time.process_time() - self._cpu
        took = sorted(self._took)
        if not took:
            raise MeasureError(f"{case}: no batch became durable in time")
        records = len(took) * self._batch
        return {
            "case": case,
            "target": target,
            "rate_per_s": records / seconds,
            "cpu_us": cpu_s / records * 1e6,
            "commits_per_s": len(took) / seconds,
            "confirm_p50_ms": took[len(took) // 2] * 1000,
            "confirm_p99_ms": took[len(took) * 99 // 100] * 1000,
        }


def _open(path: str) -> tuple[Journal, DataFolder]:
    folder = open_data_folder(OsDisk(), os.path.join(path, "data"), "a benchmark")
    file_bytes_max, reserve_bytes = journal_sizes(folder)
    journal = Journal(
        OsDisk(),
        folder.journal,
        folder.inventory.part("journal"),
        file_bytes_max=file_bytes_max,
        reserve_bytes=reserve_bytes,
    )
    return journal, folder


def _opened(path: str) -> tuple[Journal, DataFolder]:
    journal, folder = _open(path)
    for _ in journal.recover():
        raise MeasureError(f"{path} is not empty")
    return journal, folder


async def _commits(folder: str, batch: int, window: _Window) -> None:
    journal, data = _opened(folder)
    async with open_syncer() as syncer, trio.open_nursery() as nursery:
        committer = Committer(journal, syncer.sync, also=(data.inventory,))
        data.inventory.when_written = committer.wake
        nursery.start_soon(committer.run)
        going = True
        ticket = 0
        while going:
            began = time.perf_counter()
            for index in range(batch):
                ticket, _, _ = journal.append(1, 1, index, (_HEAD, _BODY))
            await committer.wait_durable(ticket)
            going = window.note(began, time.perf_counter())
            # Consumed at once: the file goes when it is full, as behind a queue that is kept empty.
            while (file := journal.to_clean()) is not None:
                journal.drop(file)
        committer.stop()
    journal.close()
    data.close()


def _floor(folder: str, batch: int, window: _Window) -> None:
    data = (bytes(RECORD_BYTES) + _HEAD + _BODY) * batch
    fd = os.open(os.path.join(folder, "floor"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        going = True
        while going:
            began = time.perf_counter()
            os.write(fd, data)
            os.fdatasync(fd)
            going = window.note(began, time.perf_counter())
    finally:
        os.close(fd)


def _append_only(folder: str, records: int) -> tuple[float, float]:
    """CPU for appending and writing, and for reading all of it again, in microseconds a record."""
    journal, data = _opened(folder)
    payload = (_HEAD, _BODY)
    began = time.process_time()
    for start in range(0, records, 256):
        for index in range(start, start + 256):
            journal.append(1, 1, index, payload)
        ticket = journal.write()
        assert ticket is not None
        # What is measured is not the disk: nothing of this has to survive anything.
        journal.fds_to_sync()
        journal.synced(ticket)
    appended_us = (time.process_time() - began) / records * 1e6
    journal.close()
    data.close()
    journal, data = _open(folder)
    began = time.process_time()
    found = sum(len(batch) for batch in journal.recover())
    read_us = (time.process_time() - began) / records * 1e6
    journal.close()
    data.close()
    if found < records:
        raise MeasureError(f"{found} of {records} records came back")
    return appended_us, read_us


def _sample(context: Context) -> list[Row]:
    samples: list[Row] = []
    place = context.options.storage_dir

    def add(row: Row) -> None:
        samples.append(row)
        rate = "" if "rate_per_s" not in row else f"{row['rate_per_s']:12,.0f} records/s"
        context.say(f"{row['case']:28} {row['target']:8} {row['cpu_us']:8.2f} µs a record {rate}")

    for batch in context.options.batches:
        case = f"durable, batches of {batch}"
        with tempfile.TemporaryDirectory(dir=place) as folder:
            window = _Window(context, batch)
            trio.run(_commits, folder, batch, window)
            add(window.row(case, "broker"))
        if context.with_floor:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                window = _Window(context, batch)
                _floor(folder, batch, window)
                add(window.row(case, "floor"))
    records = _RECORDS_QUICK if context.quick else _RECORDS
    with tempfile.TemporaryDirectory(dir=place) as folder:
        appended_us, read_us = _append_only(folder, records - records % 256)
    add({"case": "append and write, no sync", "target": "broker", "cpu_us": appended_us})
    add({"case": "read at start", "target": "broker", "cpu_us": read_us})
    return samples


def run(context: Context) -> Outcome:
    """Measure each size of batch."""
    samples: list[Row] = []
    for _ in range(context.repetitions):
        samples += _sample(context)
    return Outcome(_COLUMNS, context.described_settings(), samples)


BENCHMARK = Benchmark(
    "storage",
    "What does it cost to make a record durable, and to read it again?",
    run,
    options(batches=([1, 16, 256], "records"), storage_dir=(Path(), "where to write")),
)
