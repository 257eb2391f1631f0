"""When certificates end, read from PEM files."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trustme

from amqp10broker.auth.tls import first_end_ms


def ms(year: int, month: int = 1, day: int = 2) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


def pem(*years: int) -> str:
    """Certificates that end in these years, on the second of January, as one file."""
    authority = trustme.CA()
    made = [
        authority.issue_cert(
            "host", not_before=datetime(1970, 1, 1, tzinfo=UTC), not_after=datetime(year, 1, 2, tzinfo=UTC)
        )
        for year in years
    ]
    return "".join(each.cert_chain_pems[0].bytes().decode() for each in made)


@pytest.mark.parametrize("year", [1999, 2000, 2031, 2049, 2050, 2101])
def test_the_end_is_read_in_both_forms_of_time(year: int) -> None:
    """RFC 5280: until 2049 with two digits of the year, then with four."""
    assert first_end_ms(pem(year)) == ms(year)


def test_what_is_no_certificate_has_no_end() -> None:
    """It is not known then; nothing is guessed, and nothing raised."""
    whole = pem(2040)
    lines = whole.splitlines()
    assert first_end_ms("") is None
    assert first_end_ms("hello") is None
    assert first_end_ms(whole.replace("CERTIFICATE", "PRIVATE KEY")) is None
    for kept in range(1, len(lines) - 1):
        cut = "\n".join([lines[0], *lines[1:kept], lines[-1]])
        assert first_end_ms(cut) is None
    garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert first_end_ms(garbage) is None
    assert first_end_ms(garbage + whole) is None
