"""What logs are told of operations: those that change something, by name and object, without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import PermissionDenied, RefusedError
from amqp10broker.operations.node import Caller
from tests.support.managing import Broker


class Reports:
    def __init__(self) -> None:
        self.got: list[tuple[str, str, str | None]] = []

    def __call__(self, operation: str, subject: str, refusal: str | None) -> None:
        self.got.append((operation, subject, refusal))


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def owner(broker: Broker, reports: Reports) -> Caller:
    passwords = Passwords(broker.catalog.users, lambda count: bytes(count))
    return broker.caller(None, passwords=passwords, report=reports)


@pytest.mark.parametrize(
    ("operation", "given", "subject"),
    [
        ("declare-queue", {"name": "orders", "arguments": {"x-max-length": 1}}, "queue name='orders'"),
        ("declare-exchange", {"name": "shop"}, "exchange name='shop'"),
        ("set-tags", {"user": "guest", "tags": ["administrator"]}, "user user='guest'"),
        (
            "set-permissions",
            {"user": "guest", "configure": "^a", "write": "", "read": ".*"},
            "permission user='guest', configure='^a', write='', read='.*'",
        ),
        ("import-definitions", {"document": {"users": []}}, "definitions"),
    ],
)
def test_an_operation_names_its_object(
    broker: Broker, owner: Caller, reports: Reports, operation: str, given: dict[str, Any], subject: str
) -> None:
    broker.do(operation, caller=owner, **given)
    assert reports.got == [(operation, subject, None)]


@pytest.mark.parametrize("operation", ["add-user", "change-password"])
def test_passwords_are_in_no_report(broker: Broker, owner: Caller, reports: Reports, operation: str) -> None:
    """Neither when it is done, nor when it is refused."""
    user = "ann" if operation == "add-user" else "guest"
    broker.do(operation, caller=owner, user=user, password="s3cret")
    assert reports.got == [(operation, f"user user='{user}'", None)]
    with pytest.raises(RefusedError):
        broker.do(operation, caller=owner, user="x" * 300, password="s3cret", other=1)
    assert len(reports.got) == 2
    assert "s3cret" not in repr(reports.got)


def test_an_operation_that_asks_a_queue_is_reported_when_it_has_answered(
    broker: Broker, owner: Caller, reports: Reports
) -> None:
    """A refusal by the queue is one of the operation."""
    broker.do("declare-queue", name="q")
    broker.fill("q", 1)
    with pytest.raises(RefusedError) as caught:
        broker.do("delete-queue", caller=owner, name="q", if_empty=True)
    assert reports.got == [("delete-queue", "queue name='q'", caught.value.description)]
    broker.do("purge-queue", caller=owner, name="q")
    assert reports.got[1:] == [("purge-queue", "queue name='q'", None)]


def test_a_missing_permission_is_not_reported_twice(broker: Broker, reports: Reports) -> None:
    """It ends the session of the client, and that is told."""
    caller = broker.caller(broker.user("ann"), report=reports)
    with pytest.raises(PermissionDenied):
        broker.do("declare-queue", caller=caller, name="q")
    assert reports.got == []
