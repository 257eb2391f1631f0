"""``amqp10broker user explain-token``: what it says of a token, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.cli import main
from tests.support.key_server import key_server
from tests.support.tokens import SERVER, key, pem, token


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "key.pem").write_bytes(pem())
    file = tmp_path / "broker.toml"
    file.write_text(
        f'auth_backends = "oauth2"\noauth2_resource_server_id = "{SERVER}"\n'
        f'oauth2_signing_keys = "k1={tmp_path}/key.pem"\n'
    )
    return file


def explain(config: Path, secret: str, *options: str) -> int:
    written = config.parent / "token"
    written.write_text(secret + "\n")
    return main.main(
        ["user", "explain-token", "--config", str(config), "--token-file", str(written), *options]
    )


def explained(config: Path, secret: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = explain(config, secret, "--formatter", "json")
    said = capsys.readouterr().out
    assert secret not in said
    return code, json.loads(said)


def test_what_a_token_allows_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = token("read:v/q", "tag:monitoring", "read:v", exp=4102444800)
    assert explain(config, secret) == 0
    dropped = "it must have two parts or three, with slashes between: virtual host/name/routing key"
    assert capsys.readouterr().out.splitlines() == [
        "accepted",
        "user:    ann",
        "expires: 2100-01-01T00:00:00+00:00",
        "tags:    monitoring",
        "allows:  read:v/q",
        "allows:  tag:monitoring",
        f"dropped: rabbitmq.read:v: {dropped}",
    ]


def test_a_token_that_would_be_refused_is_explained_all_the_same(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = explained(config, token("read:v/q", lasts_s=-5), capsys)
    assert (code, said["refused"], said["scopes"]) == (1, "it has expired", ["read:v/q"])
    code, said = explained(config, token(user="", lasts_s=None), capsys)
    assert code == 1
    assert said["refused"] == "it has no claim 'exp', so it would never end"


def test_nothing_is_said_of_a_token_that_somebody_else_signed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = explained(config, token("read:v/q", signed_by=key("RSA", "other")), capsys)
    assert (code, said) == (1, {"refused": "bad_signature: the signature is wrong"})


def test_the_key_set_is_fetched_as_for_a_login(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a real server, in a thread."""
    with key_server(key("EC", "e1")) as server:
        monkeypatch.setenv("AMQP10BROKER_OAUTH2_JWKS_URI", server.uri)
        secret = token("read:v/q", alg="ES256", signed_by=key("EC", "e1"), kid="e1")
        code, said = explained(config, secret, capsys)
        assert (code, said["user"]) == (0, "ann")
    code, said = explained(config, secret, capsys)
    assert (code, said) == (1, {"refused": "it is signed with key 'e1', which is not known"})
