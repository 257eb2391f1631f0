"""Users and passwords without chance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp10broker.auth.passwords import Passwords, plain_record, rabbit_record
from amqp10broker.metadata.users import Users
from tests.support.declaring import add_user


@pytest.fixture
def token() -> Callable[[int], bytes]:
    """Return bytes that differ between calls and are the same in every run."""
    count = 0

    def make(size: int) -> bytes:
        nonlocal count
        count += 1
        return bytes([count]) * size

    return make


@pytest.fixture
def users() -> Users:
    users = Users()
    add_user(users, "guest", plain_record("guest"))
    add_user(users, "rabbit", rabbit_record("hole", b"salt"))
    add_user(users, "nobody", None)
    return users


@pytest.fixture
def passwords(users: Users, token: Callable[[int], bytes]) -> Passwords:
    return Passwords(users, token)
