"""Refused operations as the API answers them."""

from __future__ import annotations

import json

import pytest

from amqp10broker import errors
from amqp10broker.api.messages import refused

TEXT = "queue 'q' in vhost '/': a sentence"


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        (errors.NotFound, 404, "not_found"),
        (errors.Unavailable, 503, "unavailable"),
        (errors.Inequivalent, 400, "bad_request"),
        (errors.InvalidArgument, 400, "bad_request"),
        (errors.InUse, 400, "bad_request"),
        (errors.ResourceLocked, 400, "bad_request"),
        (errors.LimitExceeded, 400, "bad_request"),
        (errors.BadRequest, 400, "bad_request"),
        (errors.NotSupported, 400, "bad_request"),
    ],
)
def test_a_refusal_has_its_status_and_its_sentence(
    kind: type[errors.RefusedError], status: int, error: str
) -> None:
    answer = refused(kind("queue 'q'", TEXT)).answer
    assert answer.status == status
    assert json.loads(answer.body) == {"error": error, "reason": TEXT}


@pytest.mark.parametrize("kind", [errors.AccessRefused, errors.PermissionDenied, errors.ReservedName])
def test_a_user_who_may_not_is_told_no_more(kind: type[errors.RefusedError]) -> None:
    answer = refused(kind("queue 'q'", TEXT)).answer
    assert answer.status == 401
    assert json.loads(answer.body) == {"error": "not_authorised", "reason": "Access refused."}
