"""Records of the passwords that an operation is given, made in a thread before it runs (see `login`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amqp10broker.auth.passwords import Passwords, ReadyRecords
from amqp10broker.metadata.users import PasswordRecord
from amqp10broker.runtime.connections import login


async def made_in_thread(passwords: Passwords, plain: list[str]) -> ReadyRecords:
    """Have records made of passwords. Raises `InvalidArgument` if one is empty or holds a NUL."""
    records: dict[str, list[PasswordRecord]] = defaultdict(list)
    for password in plain:
        records[password].append(await login.run_slow(_make(passwords, password)))
    return ReadyRecords(passwords, records)


def _make(passwords: Passwords, password: str) -> Callable[[], PasswordRecord]:
    return lambda: passwords.make(password)


def passwords_in(operation: str, given: Mapping[str, Any]) -> list[str]:
    """The passwords in plain that an operation is given."""
    if operation in ("add-user", "change-password"):
        password = given.get("password")
        return [password] if isinstance(password, str) else []
    if operation == "put-user":
        entry = given.get("entry")
        return list(_plain_passwords({"users": [entry]}))
    if operation == "import-definitions":
        return list(_plain_passwords(given.get("document")))
    return []


def _plain_passwords(document: object) -> Iterator[str]:
    users = document.get("users") if isinstance(document, dict) else None
    for user in users if isinstance(users, list) else ():
        if isinstance(user, dict) and "password_hash" not in user:
            password = user.get("password")
            if isinstance(password, str) and password and "\0" not in password:
                yield password
