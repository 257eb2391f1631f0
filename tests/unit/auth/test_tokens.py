"""Tokens of OAuth 2, and what their scopes allow."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey

from amqp10broker.auth.tokens import (
    ALGORITHMS,
    SYMMETRIC,
    TokenGrants,
    TokenKeys,
    TokenRefused,
    TokenSettings,
    TokenVerifier,
    UnknownKey,
    Wildcard,
    looks_like_token,
    read_scopes,
)
from amqp10broker.errors import ConfigError
from tests.support import tokens
from tests.support.tokens import SERVER, key, pem

NOW = 1_800_000_000
"""Seconds since the epoch, when all tokens are made and looked at."""


def verifier(keys: TokenKeys | None = None, **settings: Any) -> TokenVerifier:
    return TokenVerifier(TokenSettings(SERVER, **settings), keys or TokenKeys(by_id={"k1": pem()}))


def token(*scopes: str, **claims: Any) -> str:
    return tokens.token(*scopes, now_s=NOW, **claims)


def verify(text: str, keys: TokenKeys | None = None, **settings: Any) -> Any:
    return verifier(keys, **settings).verify(text.encode(), NOW)


def refusal(text: str, keys: TokenKeys | None = None, **settings: Any) -> str:
    with pytest.raises(TokenRefused) as refused:
        verify(text, keys, **settings)
    assert text not in str(refused.value)
    return str(refused.value)


def test_a_token_says_who_and_what_and_until_when() -> None:
    grants = verify(token("read:v/q", "tag:monitoring", lasts_s=60))
    assert grants.user == "ann"
    assert grants.allows("read", "v", "q")
    assert grants.account.tags == ("monitoring",)
    assert grants.expires_at == NOW + 60


@pytest.mark.parametrize(
    ("kind", "alg"),
    [
        ("RSA", "RS256"),
        ("RSA", "PS512"),
        ("EC", "ES256"),
        pytest.param("OKP", "EdDSA", marks=pytest.mark.filterwarnings("ignore:EdDSA")),  # when it is made
        ("OKP", "Ed25519"),
    ],
)
def test_signatures_of_all_kinds_of_keys_are_verified(kind: str, alg: str) -> None:
    keys = TokenKeys(by_id={"k1": pem(kind)})
    assert verify(token(alg=alg, signed_by=key(kind)), keys).user == "ann"
    other = token(alg=alg, signed_by=key(kind, "other"))
    assert "signature" in refusal(other, keys)


def test_a_secret_counts_only_where_its_algorithm_is_named() -> None:
    keys = TokenKeys(by_id={"k1": b"a secret of thirty-two bytes !!!"})
    secret = OctKey.import_key(b"a secret of thirty-two bytes !!!")
    made = token(alg="HS256", signed_by=secret)
    assert "not allowed" in refusal(made, keys)
    assert verify(made, keys, algorithms=(*ALGORITHMS, *SYMMETRIC)).user == "ann"


def test_a_public_key_is_no_secret() -> None:
    """It could sign tokens if it were taken as the secret of HS256 (RFC 8725)."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    body = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{part({'sub': 'eve', 'aud': SERVER, 'exp': 1e12})}"
    signature = hmac.digest(pem(), body.encode(), hashlib.sha256)
    forged = f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    assert "key" in refusal(forged, algorithms=(*ALGORITHMS, *SYMMETRIC))


def test_a_token_without_a_signature_is_refused() -> None:
    head = base64.urlsafe_b64encode(b'{"alg":"none","kid":"k1"}').rstrip(b"=").decode()
    claims = token().split(".")[1]
    refusal(f"{head}.{claims}.")
    with pytest.raises(ConfigError, match="oauth2_algorithms names 'none'"):
        verifier(algorithms=("RS256", "none"))


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "eyJhIjoxfQ..", "\x00.\xff.", "eyJ." * 3])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(TokenRefused):
        verify(text)


@pytest.mark.parametrize(
    ("claims", "settings", "why"),
    [
        ({"lasts_s": -1}, {}, "has expired"),
        ({"lasts_s": None}, {}, "no claim 'exp'"),
        ({"exp": "soon"}, {}, "'exp' is no time"),
        ({"exp": True}, {}, "'exp' is no time"),
        ({"nbf": NOW + 600}, {}, "not valid yet"),
        ({"aud": "other"}, {}, "is for 'other', and not for 'rabbitmq'"),
        ({"aud": None}, {}, "and not for 'rabbitmq'"),
        ({"iss": "eve"}, {"issuer": "authority"}, "of issuer 'eve', not of 'authority'"),
    ],
)
def test_claims_must_be_right(claims: Any, settings: Any, why: str) -> None:
    assert why in refusal(token("read:v/q", **claims), **settings)


@pytest.mark.parametrize("claims", [{"user": None}, {"user": "a\0b"}, {"user": ""}, {"sub": 7}])
def test_a_token_without_a_usable_name_is_of_the_user_unknown(claims: Any) -> None:
    assert verify(token("read:v/q", **claims)).user == "unknown"


@pytest.mark.parametrize(
    ("claims", "settings"),
    [
        ({"lasts_s": -1}, {"leeway_s": 60}),
        ({"lasts_s": None}, {"require_exp": False}),
        ({"nbf": NOW + 10}, {"leeway_s": 60}),
        ({"aud": ["other", "rabbitmq"]}, {}),
        ({"aud": "other"}, {"verify_aud": False}),
        ({"iss": "authority"}, {"issuer": "authority"}),
    ],
)
def test_settings_say_what_is_right(claims: Any, settings: Any) -> None:
    assert verify(token(**claims), **settings).user == "ann"


def test_scopes_may_be_a_list_and_stand_in_further_claims() -> None:
    made = token(
        scope=["rabbitmq.read:v/a", "rabbitmq.read:v/b"],
        roles="rabbitmq.read:v/c",
        realm={"access": {"roles": ["rabbitmq.read:v/d"]}},
    )
    grants = verify(made, additional_scopes_keys=("roles", "realm.access.roles", "nothing.there"))
    assert [name for name in "abcde" if grants.allows("read", "v", name)] == ["a", "b", "c", "d"]


def test_aliases_stand_for_scopes() -> None:
    aliases = {"admin": ("rabbitmq.tag:administrator", "rabbitmq.read:*/*")}
    grants = verify(token(scope="admin openid"), scope_aliases=aliases)
    assert grants.account.tags == ("administrator",)
    assert grants.allows("read", "v", "q")


def test_scopes_of_others_count_for_nothing_unless_there_is_no_prefix() -> None:
    made = token(scope="read:v/q")
    assert not verify(made).allows("read", "v", "q")
    assert verify(made, scope_prefix="").allows("read", "v", "q")


def test_a_key_that_is_not_known_is_told_apart() -> None:
    with pytest.raises(UnknownKey, match="signed with key 'k2', which is not known"):
        verify(token(kid="k2"))


def test_keys_of_the_authority_are_found_by_their_ids() -> None:
    keys = TokenKeys()
    public = [
        {**key("RSA").as_dict(private=False), "kid": "k1"},
        {**key("EC").as_dict(private=False), "kid": "e1", "use": "sig"},
        {"kty": "strange", "kid": "s"},
        {**key("RSA", "x").as_dict(private=False), "kid": "enc", "use": "enc"},
        {"kty": "oct", "k": "AAAA", "kid": "secret"},
        "no object",
    ]
    keys.learn({"keys": public})
    assert set(keys.fetched) == {"k1", "e1"}
    assert verify(token(), keys).user == "ann"
    assert verify(token(alg="ES256", signed_by=key("EC"), kid="e1"), keys).user == "ann"
    keys.learn({"keys": []})
    with pytest.raises(UnknownKey):
        verify(token(), keys)


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, "keys"])
def test_what_is_no_key_set_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="no array 'keys'"):
        TokenKeys().learn(document)


def test_a_token_without_an_id_is_verified_with_the_default_key() -> None:
    assert verify(token(kid=None), TokenKeys(pem())).user == "ann"
    with pytest.raises(UnknownKey):
        verify(token(kid=None), TokenKeys(by_id={"k1": pem()}))
    alone = TokenKeys()
    alone.learn({"keys": [{**key("RSA").as_dict(private=False), "kid": "k1"}]})
    assert verify(token(kid=None), alone).user == "ann"


@pytest.mark.parametrize("data", [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_a_key_that_cannot_be_read_is_named(data: bytes) -> None:
    with pytest.raises(ConfigError, match="oauth2_signing_keys k1"):
        TokenKeys(by_id={"k1": data})


def test_a_password_is_not_taken_for_a_token() -> None:
    assert looks_like_token(token().encode())
    assert not looks_like_token(b"secret")
    assert not looks_like_token(b"a.b.c")


VARIABLES = {"sub": "ann", "team": "a/b*"}


def grants(*scopes: str, prefix: str = "") -> TokenGrants:
    return TokenGrants("ann", read_scopes(scopes, prefix, VARIABLES), None)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a*a", "a", False),
        ("*ab*ab*", "ab", False),
        ("a**b", "ab", True),
        ("%2F", "/", True),
        ("%2A", "*", True),
        ("%2A", "x", False),
    ],
)
def test_a_star_stands_for_any_text(pattern: str, text: str, matches: bool) -> None:
    """A literal star is written as in RFC 3986; the property below covers all other text."""
    assert Wildcard.read(pattern).matches(text) is matches


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=5).map("*".join), st.text("abc", max_size=12))
def test_a_wildcard_means_what_the_regular_expression_means(pattern: str, text: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert Wildcard.read(pattern).matches(text) is (re.fullmatch(expression, text) is not None)


def test_a_scope_allows_its_operation_on_its_names_in_its_virtual_host() -> None:
    ann = grants("read:v/q*", "write:v/x", "configure:*/own-*")
    assert ann.allows("read", "v", "q1")
    assert not ann.allows("write", "v", "q1")
    assert not ann.allows("read", "w", "q1")
    assert ann.allows("configure", "w", "own-1")
    assert not ann.allows("configure", "w", "other")


def test_a_key_may_name_the_virtual_host_and_claims() -> None:
    ann = grants("write:*/x/{vhost}.{sub}.*", "write:*/y/{team}")
    assert ann.allows_topic("write", "v", "x", "v.ann.1")
    assert not ann.allows_topic("write", "w", "x", "v.ann.1")
    assert not ann.allows_topic("write", "v", "x", "v.bob.1")
    assert ann.allows_topic("write", "v", "y", "a/b*")
    assert not ann.allows_topic("write", "v", "y", "a/bc"), "a star of a claim is a star"


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ("other.read:v/q", "does not begin with 'rabbitmq.'"),
        ("rabbitmq.openid", "has no colon"),
        ("rabbitmq.delete:v/q", "'delete' is none of configure, write, read, tag"),
        ("rabbitmq.read:v", "two parts or three"),
        ("rabbitmq.read:v/q/k/more", "two parts or three"),
        ("rabbitmq.read:%FF/q", "not UTF-8"),
        ("rabbitmq.read:v/q/{nobody}", "no claim of the token, that is a text, is called 'nobody'"),
    ],
)
def test_a_scope_that_means_nothing_is_dropped_and_it_is_said_why(scope: str, why: str) -> None:
    granted = read_scopes([scope, "rabbitmq.read:v/q"], "rabbitmq.", VARIABLES)
    assert len(granted.scopes) == 1
    ((dropped, reason),) = granted.dropped
    assert dropped == scope
    assert why in reason


def test_another_token_counts_from_then_on_and_answers_are_stale() -> None:
    ann = grants("read:v/q")
    before = ann.changes.version
    ann.renew(TokenGrants("ann", read_scopes(["read:v/r"], "", {}), 5.0))
    assert ann.changes.version != before
    assert ann.allows("read", "v", "r")
    assert not ann.allows("read", "v", "q")
    assert ann.expires_at == 5.0
