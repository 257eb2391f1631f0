"""A Celery application for tests; the worker process imports it, too."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery, Task

QUEUE = "celery-tests"

app = Celery("celery_tests", broker=os.environ.get("CELERY_TEST_BROKER", "amqp://"), backend="rpc://")
EXCLUSIVE = os.environ.get("CELERY_TEST_EXCLUSIVE") != "no"
"""Whether a worker has queues of its own exclusively, as by default since Celery 5.6."""
app.conf.update(
    control_queue_exclusive=EXCLUSIVE,
    event_queue_exclusive=EXCLUSIVE,
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=4,
    worker_send_task_events=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=3,
    task_publish_retry=False,
)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def divide(a: int, b: int) -> float:
    return a / b


@app.task
def echo(value: Any) -> Any:
    return value


@app.task(bind=True, max_retries=3)
def third_time(self: Task) -> int:
    retries: int = self.request.retries
    if retries < 2:
        raise self.retry(countdown=0.01)
    return retries


@app.task(acks_late=True, reject_on_worker_lost=True)
def die_once(marker: str) -> str:
    path = Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second time"
