"""Opens connections of the data source with retries, and translates failures into errors that name options.

If the broker is unavailable for a moment (a restart, a slow network), the attempt is repeated with growing
pauses for `ConnectionOptions.retry_timeout_s` (`retry`). A refusal is final, because it would be repeated.
Spark itself restarts nothing when a source fails.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from amqp10broker.client.blocking import Client
from amqp10broker.client.blocking import connect as connect_once
from amqp10broker.client.errors import (
    ClientError,
    ConnectError,
    ConnectionEndedError,
    LinkError,
    LoginError,
    SessionEndedError,
    TimedOutError,
    TlsError,
    place_of,
)
from amqp10broker.client.options import ClientOptions, made_up_container_id
from amqp10broker.protocols.amqp10.errors import Condition
from amqp10broker.spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    QueueUnusable,
    RetryBudget,
    SparkSourceError,
)
from amqp10broker.spark.options import ConnectionOptions

_SAME_EVERYWHERE: Final = "give a PEM file that is on the driver and on all workers under this path"


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """Return the TLS context, None for a plain connection. Raises `BrokerRefused` if a file of the options
    cannot be used.
    """
    if not options.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except OSError as error:
        raise _unusable("tls.caFile", options.ca_file, error) from error
    if options.certificate_file is not None:
        _load_own(context, options.certificate_file, options.key_file)
    return context


def _load_own(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    for option, path in (("tls.certificateFile", certificate), ("tls.keyFile", key)):
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise _unusable(option, path, error) from error
    where = f"option tls.certificateFile is '{certificate}'"
    if key is not None:
        where += f" and tls.keyFile '{key}'"

    def pass_phrase() -> NoReturn:
        # Without this function OpenSSL prompts at the terminal, and a query hangs.
        raise BrokerRefused(f"{where}: the key is encrypted; give one without a pass phrase")

    try:
        context.load_cert_chain(certificate, key, password=pass_phrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BrokerRefused(
                f"{where}: the key does not belong to the certificate; give the two that were made together"
            ) from error
        raise BrokerRefused(
            f"{where}, which cannot be used: a certificate and its private key, both in PEM format, are "
            "wanted, in one file or in two"
        ) from error


def _unusable(option: str, path: str | None, error: OSError) -> BrokerRefused:
    # PyPy's `ssl` sets only the number of the system's errors.
    if error.errno is not None and not isinstance(error, ssl.SSLError):
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error)
    return BrokerRefused(f"option {option} is '{path}', which cannot be used: {reason}; {_SAME_EVERYWHERE}")


# For one attempt, of which there may be several.
CONNECT_TIMEOUT_S: Final = 10.0
# Brokers take a second or more to answer a wrong password, which is not the same as no answer.
_ATTEMPT_MIN_S: Final = 5.0
# A filter with the start of reading in a stream. No other kind of queue of this broker applies it.
OFFSET_SPEC: Final = "rabbitmq:stream-offset-spec"
T = TypeVar("T")

_PERMANENT: Final = frozenset(
    {
        Condition.NOT_FOUND,
        Condition.UNAUTHORIZED_ACCESS,
        Condition.NOT_ALLOWED,
        Condition.NOT_IMPLEMENTED,
        Condition.PRECONDITION_FAILED,
        Condition.INVALID_FIELD,
    }
)


def dial(options: ConnectionOptions, *, purpose: str, incoming_window: int = 2048) -> Client:
    """Connect, log in, and begin a session, once: for an `attempt` of `with_retries`. Raises `ClientError` as
    `client.blocking.connect`.
    """
    return connect_once(
        options.host,
        options.port,
        user=options.username,
        password=options.password,
        options=ClientOptions(
            container_id=f"spark-{purpose}-{made_up_container_id()}",
            hostname=None if options.vhost is None else f"vhost:{options.vhost}",
            properties={"product": "amqp10broker-spark"},
            incoming_window=incoming_window,
        ),
        timeout_s=min(CONNECT_TIMEOUT_S, max(_ATTEMPT_MIN_S, options.retry_timeout_s)),
        ssl_context=tls_context(options),
        mechanism=options.mechanism,
    )


def with_retries(
    options: ConnectionOptions,
    attempt: Callable[[], T],
    *,
    queue: str = "",
    patience: RetryBudget | None = None,
) -> T:
    """Call `attempt` until it succeeds; raise SparkSourceError if it fails for good. `patience`: of larger
    work, of which the success of `attempt` alone is not progress; None for a new one.
    """
    if patience is None:
        patience = RetryBudget(options.retry_timeout_s)
    while True:
        try:
            return attempt()
        except ClientError as error:
            pause_or_raise(error, options, patience, queue=queue)


def pause_or_raise(
    error: ClientError, options: ConnectionOptions, patience: RetryBudget, *, queue: str = ""
) -> None:
    """Pause before another attempt; raise the error if it is permanent, or time is over."""
    if not may_pass(error) or not patience.failed():
        raise translated(error, options, queue=queue, tries=patience.failures) from error


def may_pass(error: ClientError) -> bool:
    """Return whether the same attempt may succeed a little later."""
    match error:
        case TlsError():
            # A broker that is starting or stopping may drop the connection; a certificate does not change.
            return isinstance(error.__cause__, ConnectionError)
        case LoginError():
            return False
        case ConnectError() | TimedOutError():
            return True
        case ConnectionEndedError() | SessionEndedError():
            return error.condition not in _PERMANENT
        case LinkError():
            return error.condition in (
                Condition.RESOURCE_LIMIT_EXCEEDED,
                Condition.INTERNAL_ERROR,
                Condition.DETACH_FORCED,
            )
        case _:
            return False


def translated(
    error: ClientError, options: ConnectionOptions, *, queue: str = "", tries: int = 1
) -> SparkSourceError:
    """Translate a client's error into one that names options of the data source."""
    where = place_of(options.host, options.port)
    again = f" (tried {tries} times in {options.retry_timeout_s:g} s)" if tries > 1 else ""
    match error:
        case TlsError():
            return BrokerRefused(f"{where}: {error}; see the options url, tls.caFile and tls.certificateFile")
        case LoginError():
            user_text = (
                f"user '{options.username}'" if options.username is not None else "a client without user"
            )
            return BrokerRefused(
                f"{where} does not let {user_text} in by SASL {options.mechanism}: {error}; see the options "
                "username, password and saslMechanism"
            )
        case LinkError() | SessionEndedError() if error.condition == Condition.NOT_FOUND:
            vhost = options.vhost
            named = "the default virtual host" if vhost is None else f"virtual host '{vhost}'"
            return QueueUnusable(
                f"there is no queue or stream '{queue}' in {named} of {where}: declare it first, "
                "or correct the name"
            )
        case LinkError() if error.condition != Condition.UNAUTHORIZED_ACCESS:
            return QueueUnusable(f"{where}: {error}")
        case ConnectionEndedError() | SessionEndedError() | LinkError() if error.condition in _PERMANENT:
            return BrokerRefused(f"{where}: {error}; see the options username and vhost")
        case ConnectError() | TimedOutError():
            return BrokerUnreachable(f"{where} does not answer{again}: {error}; see the option url")
        case ConnectionEndedError() | SessionEndedError():
            return BrokerUnreachable(f"{where} went away and did not come back{again}: {error}")
        case _:
            return SparkSourceError(f"{where}: {error}")
