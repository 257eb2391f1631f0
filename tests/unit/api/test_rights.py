"""Logins of HTTP Basic, and the matrix of tags."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from amqp10broker.api.front import NOT_LOGGED_IN, Credentials, Tag, check_tag, credentials
from amqp10broker.api.messages import HttpResponse, RequestRefused


def basic(text: bytes, scheme: str = "Basic") -> str:
    return f"{scheme} {b64encode(text).decode()}"


def test_a_client_without_login_is_asked_for_one() -> None:
    assert credentials(None) is NOT_LOGGED_IN
    assert NOT_LOGGED_IN.status == 401
    assert NOT_LOGGED_IN.headers == (("www-authenticate", 'Basic realm="RabbitMQ Management"'),)
    assert NOT_LOGGED_IN.body == b""


@pytest.mark.parametrize("header", ["Basic ", "Basic ***", basic(b"no colon"), "Basic YW5u=OmE="])
def test_a_login_that_cannot_be_read_is_a_bad_request(header: str) -> None:
    assert credentials(header) == HttpResponse(400)


def test_a_bearer_token_is_a_password_without_a_name() -> None:
    assert credentials("Bearer a.b.c") == Credentials(b"", b"a.b.c")
    assert "a.b.c" not in repr(credentials("bearer a.b.c"))


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (Tag.MANAGEMENT, "MPOA"),
        (Tag.POLICYMAKER, "PA"),
        (Tag.MONITORING, "OA"),
        (Tag.ADMINISTRATOR, "A"),
    ],
)
def test_which_tag_suffices_for_which(wanted: Tag, may: str) -> None:
    tags = {"M": "management", "P": "policymaker", "O": "monitoring", "A": "administrator"}
    for letter, tag in tags.items():
        if letter in may:
            check_tag(wanted, {tag, "another"})
        else:
            with pytest.raises(RequestRefused) as refused:
                check_tag(wanted, {tag})
            assert refused.value.answer.status == 401


@pytest.mark.parametrize(
    ("wanted", "tags", "reason"),
    [
        (Tag.ADMINISTRATOR, (), "Not management user"),
        (Tag.MANAGEMENT, ("impersonator",), "Not management user"),
        (Tag.ADMINISTRATOR, ("monitoring",), "Not administrator user"),
        (Tag.MONITORING, ("policymaker",), "Not monitor user"),
        (Tag.POLICYMAKER, ("management",), "User not authorised to access object"),
    ],
)
def test_the_refusal_says_what_is_missing(wanted: Tag, tags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check_tag(wanted, tags)
    assert json.loads(refused.value.answer.body) == {"error": "not_authorised", "reason": reason}
