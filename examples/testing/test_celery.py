"""Celery: a task, and a worker in a thread, with the broker of the test."""

from celery import Celery
from celery.contrib.testing.worker import start_worker


def test_a_task_is_run(amqp_broker):
    app = Celery("app", broker=amqp_broker.url, backend="rpc://")
    app.conf.worker_hijack_root_logger = False
    app.conf.broker_heartbeat = 1  # the worker's loop wakes as often, and then sees that it is to end

    @app.task
    def add(x, y):
        return x + y

    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR", shutdown_timeout=30):
        assert add.delay(1, 2).get(timeout=20) == 3
    assert amqp_broker.queue("celery").messages == 0
