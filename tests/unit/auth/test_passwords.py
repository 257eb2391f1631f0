"""Records of passwords, and SCRAM."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

import pytest

from amqp10broker.auth import passwords as module
from amqp10broker.auth.passwords import Passwords, ScramError, ScramServer, derive, plain_record, saslprep
from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Users
from tests.support.declaring import add_user, delete_user, set_password


def slowly(passwords: Passwords, name: str, password: bytes) -> bool:
    return passwords.slow(name, password)()


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        (PasswordAlgorithm.RABBIT_SHA256, "sha256"),
        (PasswordAlgorithm.RABBIT_SHA512, "sha512"),
        (PasswordAlgorithm.RABBIT_MD5, "md5"),
    ],
)
def test_rabbitmqs_algorithms_are_verified(
    users: Users, passwords: Passwords, algorithm: PasswordAlgorithm, digest: str
) -> None:
    """A hash is the salt and a digest of salt and password."""
    stored = b"\x01\x02\x03\x04" + hashlib.new(digest, b"\x01\x02\x03\x04secret").digest()
    add_user(users, "u", PasswordRecord(algorithm, base64.b64encode(stored).decode()))
    assert passwords.quick("u", b"secret")
    assert not passwords.quick("u", b"Secret")
    assert slowly(passwords, "u", b"secret")
    assert not slowly(passwords, "u", b"Secret")


def test_a_password_is_kept_for_rabbitmq_beside_argon2_on_request(users: Users, passwords: Passwords) -> None:
    """It is the same password with another salt; a login uses argon2 alone."""
    assert passwords.make("secret").rabbit_sha256 is None
    record = Passwords(users, secrets.token_bytes, "sha256").make("secret")
    assert record.algorithm is PasswordAlgorithm.ARGON2ID
    assert record.rabbit_sha256 is not None
    add_user(users, "there", PasswordRecord(PasswordAlgorithm.RABBIT_SHA256, record.rabbit_sha256))
    assert passwords.quick("there", b"secret")
    add_user(users, "here", record)
    assert not passwords.quick("here", b"secret")
    assert slowly(passwords, "here", b"secret")


@pytest.mark.parametrize("value", ["", "not base64!", "AAAA"])
def test_a_broken_record_lets_nobody_in(users: Users, passwords: Passwords, value: str) -> None:
    add_user(users, "u", PasswordRecord(PasswordAlgorithm.RABBIT_SHA256, value))
    add_user(users, "v", PasswordRecord(PasswordAlgorithm.ARGON2ID, value))
    for name in ("u", "v"):
        for password in (b"", b"x"):
            assert not passwords.quick(name, password)
            assert not slowly(passwords, name, password)


def test_a_new_password_is_kept_as_argon2id(users: Users, passwords: Passwords) -> None:
    """It has the parameters that OWASP recommends, and a verifier for SCRAM."""
    record = passwords.make("correct horse")
    assert record.algorithm is PasswordAlgorithm.ARGON2ID
    assert record.value.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert record.scram is not None
    add_user(users, "u", record)
    assert not passwords.quick("u", b"correct horse")
    assert slowly(passwords, "u", b"correct horse")
    assert not slowly(passwords, "u", b"wrong horse")


@pytest.mark.parametrize("password", ["", "a\0b"])
def test_passwords_that_plain_cannot_carry_are_refused(passwords: Passwords, password: str) -> None:
    """An empty password never allows a login."""
    with pytest.raises(InvalidArgument):
        passwords.make(password)
    with pytest.raises(InvalidArgument):
        plain_record(password)


def test_a_right_password_is_remembered(
    users: Users, passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second login of a user costs no argon2; a wrong password still does."""
    add_user(users, "u", passwords.make("p"))
    record = passwords.record("u")
    assert slowly(passwords, "u", b"p")
    assert passwords.remember("u", b"p", record)

    def refuse(*arguments: object) -> bool:
        raise AssertionError("argon2 was asked")

    monkeypatch.setattr(module, "_verify_argon2", refuse)
    assert passwords.quick("u", b"p")
    assert not passwords.quick("u", b"q")
    assert not passwords.quick("v", b"p")
    with pytest.raises(AssertionError, match="argon2 was asked"):
        slowly(passwords, "u", b"q")


def test_a_changed_password_is_forgotten_at_once(users: Users, passwords: Passwords) -> None:
    """The old password fails from then on, and so does that of a deleted user."""
    add_user(users, "u", passwords.make("old"))
    passwords.remember("u", b"old", passwords.record("u"))
    set_password(users, "u", passwords.make("new"))
    assert not passwords.quick("u", b"old")
    passwords.remember("u", b"new", passwords.record("u"))
    assert passwords.quick("u", b"new")
    delete_user(users, "u")
    assert not passwords.quick("u", b"new")


def test_what_was_verified_against_an_old_record_is_not_remembered(
    users: Users, passwords: Passwords
) -> None:
    """The password may be changed while a thread verifies the old one."""
    add_user(users, "u", passwords.make("old"))
    record = passwords.record("u")
    set_password(users, "u", passwords.make("new"))
    assert not passwords.remember("u", b"old", record)
    assert not passwords.quick("u", b"old")
    delete_user(users, "u")
    assert not passwords.remember("u", b"old", record)


def test_what_is_remembered_of_deleted_users_goes_with_the_next(users: Users, passwords: Passwords) -> None:
    """Memory does not grow as users come and go."""
    for name in ("a", "b", "c"):
        add_user(users, name, passwords.make("p"))
        passwords.remember(name, b"p", passwords.record(name))
        if name != "c":
            delete_user(users, name)
    assert list(passwords._known) == ["c"]


@pytest.mark.parametrize("name", ["guest", "rabbit", "nobody", "unknown", "argon"])
def test_a_wrong_password_always_takes_one_argon2(
    users: Users, passwords: Passwords, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The time reveals neither which users exist nor how a password is stored."""
    add_user(users, "argon", passwords.make("p"))
    asked: list[str] = []

    def verify(value: str, password: bytes) -> bool:
        asked.append(value)
        return False

    monkeypatch.setattr(module, "_verify_argon2", verify)
    assert not passwords.quick(name, b"wrong")
    assert not slowly(passwords, name, b"wrong")
    assert not slowly(passwords, name, b"")
    assert len(asked) == 2
    assert all(value.startswith("$argon2id$v=19$m=19456,t=2,p=1$") for value in asked)


def test_the_decoy_is_a_hash_that_argon2_works_on(passwords: Passwords) -> None:
    """If argon2 could not read it, an unknown user would be refused faster."""
    from argon2 import extract_parameters

    parameters = extract_parameters(passwords._decoy_record().value)
    assert (parameters.memory_cost, parameters.time_cost, parameters.parallelism) == (19_456, 2, 1)
    assert (parameters.salt_len, parameters.hash_len) == (16, 32)


def test_a_plain_password_has_a_scram_verifier(passwords: Passwords) -> None:
    """It is made on request, with a salt that stays the same in this process."""
    record, real = passwords.scram_record("guest")()
    assert real
    assert passwords.scram_record("guest")() == (record, True)


@pytest.mark.parametrize("name", ["rabbit", "nobody", "unknown"])
def test_who_has_no_scram_verifier_gets_one_that_cannot_be_met(passwords: Passwords, name: str) -> None:
    """It looks like any other and stays the same, so it reveals nothing."""
    record, real = passwords.scram_record(name)()
    assert not real
    assert passwords.scram_record(name)() == (record, False)
    guest, _ = passwords.scram_record("guest")()
    assert (record.iterations, len(record.salt)) == (guest.iterations, len(guest.salt))
    assert record.salt != guest.salt


def test_plain_passwords_are_exported_as_rabbitmqs_hash(users: Users, passwords: Passwords) -> None:
    """A definitions file thus holds no plain password, and RabbitMQ can read it."""
    record = passwords.exportable(passwords.record("guest"))
    assert record.algorithm is PasswordAlgorithm.RABBIT_SHA256
    set_password(users, "guest", record)
    assert passwords.quick("guest", b"guest")
    assert passwords.exportable(record) is record
    assert passwords.exportable(None) is None


# RFC 7677, section 3.
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={PROOF}".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def server() -> ScramServer:
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    server.challenge(derive("pencil", SALT, 4096))
    return server


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    assert (server.user, server.authzid) == ("user", "")
    assert server.challenge(derive("pencil", SALT, 4096)) == SERVER_FIRST
    assert server.read_final(CLIENT_FINAL) == SERVER_FINAL


def test_another_password_is_refused() -> None:
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST)
    server.challenge(derive("pen", SALT, 4096))
    with pytest.raises(ScramError, match="^invalid credentials$"):
        server.read_final(CLIENT_FINAL)


@pytest.mark.parametrize(
    ("message", "user", "authzid"),
    [
        (b"n,,n=a=2Cb=3Dc,r=x", "a,b=c", ""),
        (b"y,,n=user,r=x", "user", ""),
        (b"n,a=other,n=user,r=x", "user", "other"),
        (b"n,,n=user,r=x,ext=1", "user", ""),
    ],
)
def test_first_messages_are_read(message: bytes, user: str, authzid: str) -> None:
    server = ScramServer("s")
    server.read_first(message)
    assert (server.user, server.authzid) == (user, authzid)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"p=tls-unique,,n=user,r=x", "channel binding is not offered"),
        (b"n,n=user,r=x", "client-first-message is not"),
        (b"x,,n=user,r=x", "client-first-message is not"),
        (b"n,,m=must,n=user,r=x", "client-first-message is not"),
        (b"n,,n=user,r=", "client-first-message is not"),
        (b"n,,n=,r=x", "bare ="),
        (b"n,,n=a=b,r=x", "bare ="),
        (b"n,,n=\xff,r=x", "not UTF-8"),
        (b"", "client-first-message is not"),
    ],
)
def test_bad_first_messages_are_refused(message: bytes, text: str) -> None:
    """Channel binding must fail, and so must an unknown mandatory extension."""
    with pytest.raises(ScramError, match=re.escape(text)):
        ScramServer("s").read_first(message)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("c=biws", "c=eSws", "channel binding data"),
        (SERVER_NONCE, "other", "nonce is not"),
        (PROOF, "!", "proof is not base64"),
        (PROOF, "c2hvcnQ=", "proof has the wrong length"),
        (PROOF, base64.b64encode(bytes(32)).decode(), "invalid credentials"),
        (f",p={PROOF}", "", "client-final-message is not"),
    ],
)
def test_bad_final_messages_are_refused(server: ScramServer, old: str, new: str, text: str) -> None:
    with pytest.raises(ScramError, match=text):
        server.read_final(CLIENT_FINAL.decode().replace(old, new).encode())


def test_a_client_that_was_told_of_no_binding_must_say_so_again() -> None:
    """Removing the flag y on the way changes what is signed (RFC 5802, section 6)."""
    server = ScramServer(SERVER_NONCE)
    server.read_first(CLIENT_FIRST.replace(b"n,,", b"y,,", 1))
    server.challenge(derive("pencil", SALT, 4096))
    with pytest.raises(ScramError, match="channel binding data"):
        server.read_final(CLIENT_FINAL)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
    ],
)
def test_saslprep_follows_the_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0627"])
def test_saslprep_refuses_what_rfc_4013_forbids(text: str) -> None:
    with pytest.raises(ScramError):
        saslprep(text)
