"""The page's files as they are answered."""

from __future__ import annotations

import pytest

from amqp10broker.api.endpoints.page import ROUTES, answer_of, kind_of, to_folder
from amqp10broker.api.front import Cors, Front, RoutedRequest, Router
from amqp10broker.api.messages import HttpRequest, HttpResponse, PageFile

FILE = PageFile("text/css; charset=utf-8", b"p {}", "0123abcd")


def asked(target: str, method: str = "GET", **headers: str) -> HttpRequest:
    pairs = ((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return HttpRequest.read(method.encode(), target.encode(), pairs)


def front(*prefix: str) -> Front:
    return Front(Router(ROUTES), Cors(), prefix)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("a.b.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
        ("__init__.py", None),
        ("README", None),
    ],
)
def test_a_file_is_of_the_page_if_its_type_is_known(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_a_file_comes_with_its_tag_and_may_load_nothing_from_elsewhere() -> None:
    answer = answer_of(asked("/style.css"), FILE)
    headers = dict(answer.headers)
    assert (answer.status, answer.body) == (200, b"p {}")
    assert headers["content-type"] == "text/css; charset=utf-8"
    assert headers["etag"] == 'W/"0123abcd"'
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= {
        *policy
    }
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_path_of_a_folder_without_its_slash_leads_to_the_one_with_it() -> None:
    """Otherwise a browser would look for `js/main.js` beside the folder."""
    without, there = asked("/at/our%20place"), asked("/at/our%20place/")
    assert (without.slash, there.slash) == (False, True)
    answer = to_folder(without)
    assert (answer.status, dict(answer.headers)["location"]) == (308, "our%20place/")


def test_what_an_answer_says_itself_is_not_said_otherwise() -> None:
    answer = front().leave(asked("/"), None, answer_of(asked("/"), FILE))
    told = [name for name, _ in answer.headers]
    assert told.count("content-security-policy") == 1
    assert told.count("cache-control") == 1


@pytest.mark.parametrize("target", ["/", "/js/main.js", "/js/views/queues.js", "/style.css", "/icon.svg"])
def test_files_are_below_the_prefix_and_only_read(target: str) -> None:
    below = front("at", "place")
    assert isinstance(below.enter(asked(f"/at/place{target}")), RoutedRequest)
    assert isinstance(below.enter(asked(f"/at/place{target}", "HEAD")), RoutedRequest)
    outside = below.enter(asked(target))
    assert isinstance(outside, HttpResponse)
    assert outside.status == 404
    refused = below.enter(asked(f"/at/place{target}", "POST"))
    assert isinstance(refused, HttpResponse)
    assert refused.status == 405
    assert dict(refused.headers)["allow"] == "HEAD, GET, OPTIONS"
