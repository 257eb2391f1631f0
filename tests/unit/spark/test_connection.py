"""What is tried again, what is not, and how a client's errors are told."""

from __future__ import annotations

import pytest

from amqp10broker.client.errors import (
    ClientError,
    ConnectError,
    ConnectionEndedError,
    LinkDetachedError,
    LinkRefusedError,
    LoginError,
    MessageTooLargeError,
    SessionEndedError,
    TimedOutError,
    TlsError,
)
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.spark import errors
from amqp10broker.spark.connection import may_pass, translated, with_retries
from amqp10broker.spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    QueueUnusable,
    RetryBudget,
    SparkSourceError,
)
from amqp10broker.spark.options import ConnectionOptions
from tests.support.sleeping_clock import SleepingClock

OPTIONS = ConnectionOptions(
    host="broker",
    port=5672,
    tls=False,
    vhost="shop",
    username="me",
    password="hunter2",
    mechanism="PLAIN",
    retry_timeout_s=5.0,
)


def refused(kind: type[ClientError], condition: str, **more: str | None) -> ClientError:
    return kind("the broker said no", condition=condition, **more)


def tls(cause: BaseException) -> TlsError:
    error = TlsError("no TLS")
    error.__cause__ = cause
    return error


CASES = [
    (ConnectError("nobody"), True, BrokerUnreachable),
    (TimedOutError("answer", 1.0), True, BrokerUnreachable),
    (ConnectionEndedError("lost"), True, BrokerUnreachable),
    (refused(ConnectionEndedError, Condition.CONNECTION_FORCED), True, BrokerUnreachable),
    (refused(ConnectionEndedError, Condition.NOT_FOUND), False, BrokerRefused),
    (refused(ConnectionEndedError, Condition.UNAUTHORIZED_ACCESS), False, BrokerRefused),
    (refused(SessionEndedError, Condition.NOT_FOUND), False, QueueUnusable),
    (refused(SessionEndedError, Condition.UNAUTHORIZED_ACCESS), False, BrokerRefused),
    (refused(SessionEndedError, Condition.INTERNAL_ERROR), True, BrokerUnreachable),
    (LoginError("refused"), False, BrokerRefused),
    (tls(ConnectionResetError()), True, BrokerRefused),
    (tls(OSError("certificate")), False, BrokerRefused),
    (refused(LinkRefusedError, Condition.NOT_FOUND, address="q"), False, QueueUnusable),
    (refused(LinkRefusedError, Condition.UNAUTHORIZED_ACCESS, address="q"), False, BrokerRefused),
    (refused(LinkRefusedError, Condition.PRECONDITION_FAILED, address="q"), False, QueueUnusable),
    (refused(LinkDetachedError, Condition.RESOURCE_DELETED, address="q"), False, QueueUnusable),
    (refused(LinkDetachedError, Condition.INTERNAL_ERROR, address="q"), True, QueueUnusable),
    (MessageTooLargeError(5, 4), False, SparkSourceError),
]


@pytest.mark.parametrize(("error", "again", "kind"), CASES, ids=lambda each: str(each)[:40])
def test_each_error(error: ClientError, again: bool, kind: type[SparkSourceError]) -> None:
    """Its class says what to do; its text names the broker, or the option, and no password."""
    assert may_pass(error) is again
    told = translated(error, OPTIONS, queue="orders")
    assert type(told) is kind
    assert "broker" in str(told)
    assert "hunter2" not in str(told)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    made = SleepingClock()
    monkeypatch.setattr(errors, "time", made)
    return made


def test_it_succeeds_when_the_broker_is_back(clock: SleepingClock) -> None:
    tries: list[int] = []

    def attempt() -> str:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionEndedError("lost")
        return "there"

    assert with_retries(OPTIONS, attempt) == "there"
    assert len(clock.pauses) == 3


def test_work_that_took_longer_than_the_time_allowed_is_tried_again(clock: SleepingClock) -> None:
    """The time allowed begins with the loss, not with the work."""
    tries: list[int] = []

    def attempt() -> str:
        tries.append(1)
        clock.now += 100.0
        if len(tries) < 2:
            raise ConnectionEndedError("lost")
        return "done"

    assert with_retries(OPTIONS, attempt) == "done"


def test_a_part_of_other_work_has_the_time_that_is_left_to_it(clock: SleepingClock) -> None:
    """The work has lost its connection before, and connecting alone is no progress of it."""

    def attempt() -> None:
        raise ConnectError("away")

    shared = RetryBudget(OPTIONS.retry_timeout_s)
    assert shared.failed()
    assert with_retries(OPTIONS, lambda: "connected", patience=shared) == "connected"
    clock.now = 104.0
    with pytest.raises(BrokerUnreachable):
        with_retries(OPTIONS, attempt, patience=shared)
    assert clock.now == pytest.approx(105.0)
