"""Options of the data source: whatever stands in them, it is read or refused with an `OptionError`."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from amqp10broker.client.url import UrlError, parse_url
from amqp10broker.spark.errors import OptionError
from amqp10broker.spark.options import check_at_load, parse_sink, parse_source

NAMES = (
    *("url", "vhost", "username", "password", "saslMechanism", "tls.caFile", "retryTimeout", "idleTimeout"),
    *("stream", "queue", "linkCredit", "minPartitions", "startingOffsets", "endingOffsets", "filter"),
    *("startingTimestamp", "maxOffsetsPerTrigger", "failOnDataLoss", "pushdown", "spoolLocation"),
    *("deduplicate", "address", "exchange", "durable", "maxInFlight"),
)
TEXTS = st.one_of(
    st.text(),
    st.integers().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.from_regex(r"[\[{\"0-9:,}\]]{0,40}", fullmatch=True),
    st.from_regex(r"[0-9]{1,400}(\.[0-9]{1,20})?(ms|s|m|h)?", fullmatch=True),
)
SECRET = "hunter2"
PIECES = st.text(alphabet="ab/@:?#[]%,.0 ", max_size=8)


def refusal(parse: Callable[[], object]) -> str:
    """What is said of what is wrong; empty if nothing is."""
    try:
        parse()
    except (OptionError, UrlError) as error:
        return str(error)
    return ""


@given(
    st.dictionaries(st.sampled_from(NAMES), TEXTS), st.sampled_from(["stream", "queue", ""]), st.booleans()
)
def test_options_are_read_or_refused(options: dict[str, str], kind: str, url: bool) -> None:
    """No text ends in an error that is not ours, nor in one too long to read."""
    given_too = ({kind: "s"} if kind else {}) | ({"url": "amqp://h"} if url else {})
    merged = {**options, **given_too}
    for parse in (
        lambda: parse_source(merged, streaming=False),
        lambda: parse_source(merged, streaming=True),
        lambda: parse_sink(merged, streaming=False),
        lambda: check_at_load(merged),
    ):
        assert len(refusal(parse)) < 1000


@given(PIECES, PIECES, PIECES)
@example("12/", "", "h")
@example("", "/12", "h/v")
def test_a_password_is_never_taken_for_a_host(before: str, behind: str, place: str) -> None:
    """Wherever its characters shift the rest of the url: it is the password, or nothing is read or shown."""
    text = f"amqp://me:{before}{SECRET}{behind}@{place}"
    told = refusal(lambda: parse_url(text))
    assert SECRET not in told
    if not told:
        url = parse_url(text)
        assert SECRET in (url.password or "")
        assert SECRET not in repr(url)
