"""Celery: a real worker process with the broker between, and replies over rpc://."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import Queue, pools

from tests.support import celery_tasks as tasks
from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.command_line import CommandLine
from tests.support.deadline import WAIT_S

pytestmark = pytest.mark.usefixtures("deadline")


class Worker:
    """A worker process.

    Attributes:
        log: the file with what it says.
    """

    def __init__(self, url: str, directory: Path, name: str, *arguments: str) -> None:
        self.name = f"{name}@tests"
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.support.celery_tasks"),
                    *("worker", "--loglevel", "INFO", "--hostname", self.name, "--concurrency", "2"),
                    *("--pool", "prefork", "--without-mingle", *arguments),
                ],
                cwd=REPOSITORY,
                env={**os.environ, "CELERY_TEST_BROKER": url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            pytest.fail(f"the worker did not end\n{self.log.read_text()}")
        assert code == 0, self.log.read_text()


@pytest.fixture(scope="module")
def app(shared_broker: BrokerProcess) -> Iterator[Celery]:
    tasks.app.conf.broker_url = f"amqp://guest:guest@{shared_broker.host}:{shared_broker.port}//"
    yield tasks.app
    tasks.app.backend.result_consumer.stop()
    tasks.app.close()
    pools.reset()


@pytest.fixture(scope="module")
def worker(
    app: Celery, shared_broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    running = Worker(app.conf.broker_url, tmp_path_factory.mktemp("celery"), "worker", "--task-events")
    shared_broker.wait_until(
        lambda: b" ready." in running.log.read_bytes() or running.process.poll() is not None,
        "the worker",
        timeout_s=60.0,  # it imports much before it says so
    )
    assert running.process.poll() is None, running.log.read_text()
    yield running
    running.stop()


def value(result: AsyncResult[Any]) -> Any:
    return result.get(timeout=WAIT_S)


def test_a_task_makes_the_round_trip(worker: Worker) -> None:
    """The result comes back through a reply queue of the broker."""
    assert value(tasks.add.delay(2, 3)) == 5
    assert value(tasks.add.s(4, 4).apply_async()) == 8


def test_a_failure_comes_back_as_the_exception(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        value(tasks.divide.delay(1, 0))


def test_a_task_is_retried(worker: Worker) -> None:
    """retry() publishes it again with a countdown, during which the worker holds the message."""
    assert value(tasks.third_time.delay()) == 2


def test_late_acknowledgement_survives_a_killed_child(worker: Worker, tmp_path: Path) -> None:
    """With acks_late and reject_on_worker_lost the message is requeued and runs again."""
    assert value(tasks.die_once.delay(str(tmp_path / "died"))) == "second time"


def test_tasks_are_routed_to_other_queues(worker: Worker, app: Celery, queue: str) -> None:
    """add_consumer and cancel_consumer use remote control and one direct exchange."""
    control = app.control
    assert control.add_consumer(queue, destination=[worker.name], reply=True, timeout=WAIT_S, limit=1)
    assert value(tasks.add.apply_async((5, 6), queue=queue)) == 11
    assert control.cancel_consumer(queue, destination=[worker.name], reply=True, timeout=WAIT_S, limit=1)
    with app.connection_for_write() as connection, connection.channel() as channel:
        Queue(queue, channel=channel).delete()


def test_the_worker_answers_to_ping_and_inspect(worker: Worker, app: Celery) -> None:
    """pidbox uses a fanout of commands, and answers through a reply queue."""
    assert app.control.ping(destination=[worker.name], timeout=WAIT_S, limit=1) == [
        {worker.name: {"ok": "pong"}}
    ]
    inspect = app.control.inspect(destination=[worker.name], timeout=WAIT_S, limit=1)
    assert inspect.ping() == {worker.name: {"ok": "pong"}}
    registered = inspect.registered()
    assert "tests.support.celery_tasks.add" in registered[worker.name]
    active = inspect.active_queues()
    assert [each["name"] for each in active[worker.name]] == [tasks.QUEUE]
    stats = inspect.stats()
    assert stats[worker.name]["prefetch_count"] == 8


def test_events_of_tasks_are_seen(worker: Worker, app: Celery) -> None:
    """celeryev uses a topic exchange and a transient auto-delete queue; a task's events are in order."""
    seen: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        seen.append(event["type"])
        receiver.should_stop = event["type"] == "task-succeeded"

    def on_ready(*_: Any, **__: Any) -> None:
        tasks.add.apply_async((1, 1), ignore_result=True)

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": on_event}, routing_key="task.#")
        receiver.on_consume_ready = on_ready
        receiver.capture(limit=None, timeout=WAIT_S, wakeup=False)
    assert seen == ["task-received", "task-started", "task-succeeded"]


def test_a_revoked_task_does_not_run(worker: Worker, app: Celery) -> None:
    """revoke is a broadcast, which the worker answers before the task becomes due."""
    result = tasks.add.apply_async((1, 1), countdown=3600)
    app.control.revoke(result.id, destination=[worker.name], reply=True, timeout=WAIT_S, limit=1)
    inspect = app.control.inspect(destination=[worker.name], timeout=WAIT_S, limit=1)
    revoked = inspect.revoked()
    assert result.id in revoked[worker.name]


def test_an_upgrade_check_finds_what_a_worker_uses(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kombu uses a global prefetch with brokers before 4.0; control and event queues were transient."""
    broker = start_broker("--emulate", "3.13")
    monkeypatch.setenv("CELERY_TEST_EXCLUSIVE", "no")
    worker = Worker(f"amqp://guest:guest@{broker.host}:{broker.port}//", tmp_path, "old", "--task-events")
    try:
        broker.wait_until(lambda: b" ready." in worker.log.read_bytes(), "the worker", timeout_s=60.0)
        done = CommandLine(broker).done("upgrade-check", "--to", "4.3", "--formatter", "json")
        assert done.returncode == 1
        found = json.loads(done.stdout)["findings"]
        (limit,) = [each for each in found if each["finding"] == "global_qos"]
        assert (limit["state"], limit["kind"]) == ("denied", "client")
        assert limit["what"].endswith(": 8 messages")
        assert limit["to_do"]
        transient = [each for each in found if each["finding"] == "transient_nonexcl_queues"]
        assert {each["state"] for each in transient} == {"deprecated"}
        assert f"{worker.name}.celery.pidbox" in {each["who"] for each in transient}
        assert any(each["who"].startswith("celeryev.") for each in transient)
    finally:
        worker.stop()
