"""The files of the management page, and metrics as text for Prometheus: the answers that are not JSON.

The page is readable without a login; its data comes from the API, with one. Its paths are relative, so that
it works below a prefix. Metrics are for monitoring users; a separate port has them without a login.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from amqp10broker.api.calls import EndpointCall
from amqp10broker.api.front import Endpoint, HttpRoute, Tag
from amqp10broker.api.messages import HttpRequest, HttpResponse, PageFile, not_found
from amqp10broker.observe.metrics import TYPES, Form, wanted

INDEX: Final = "index.html"
FOLDERS: Final = ("", "js/", "js/views/")
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Types by file name extension; files with another one are not part of the page."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""The page neither loads from nor sends to other origins, and cannot be framed."""


def kind_of(name: str) -> str | None:
    return KINDS.get(name[name.rfind(".") :])


def to_folder(request: HttpRequest) -> HttpResponse:
    """Redirect to the same path with a slash: browsers resolve the page's other files below it."""
    return HttpResponse(HTTPStatus.PERMANENT_REDIRECT, (("location", f"{quote(request.segments[-1])}/"),))


def answer_of(request: HttpRequest, file: PageFile) -> HttpResponse:
    """Answer with the file, or without a body if the browser has it already."""
    # The tag is weak: compressed or not, it is the same file (RFC 9110, 8.8.3.3).
    tag = f'W/"{file.tag}"'
    known = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return HttpResponse(HTTPStatus.NOT_MODIFIED, (("etag", tag), *_HEADERS))
    return HttpResponse(HTTPStatus.OK, (("content-type", file.kind), ("etag", tag), *_HEADERS), file.body)


async def get_index(call: EndpointCall) -> HttpResponse:
    return await _answer(call, INDEX) if call.request.slash else to_folder(call.request)


async def get_file(folder: str, call: EndpointCall) -> HttpResponse:
    return await _answer(call, folder + call.values["file"])


async def _answer(call: EndpointCall, path: str) -> HttpResponse:
    found = await call.broker_api.page_file(path)
    if found is None:
        raise not_found()
    return answer_of(call.request, found)


_TEXT: Final = ("text/html", "text/*", "*/*")
_ANY: Final = ("text/javascript", "text/css", "text/html", "image/svg+xml", "text/*", "image/*", "*/*")


def _folder(folder: str) -> HttpRoute:
    return HttpRoute(f"/{folder}{{file}}", {"GET": Endpoint(None, partial(get_file, folder), _ANY)})


ROUTES: Final[tuple[HttpRoute, ...]] = (
    HttpRoute("/", {"GET": Endpoint(None, get_index, _TEXT)}),
    *map(_folder, FOLDERS),
)


async def get_metrics(form: Form, call: EndpointCall) -> HttpResponse:
    request = call.request
    asked = wanted(
        form,
        families=request.every("family"),
        vhosts=request.every("vhost"),
        queue=request.query.get("queue"),
        accept=request.headers.get("accept"),
    )
    body = await call.broker_api.metrics(asked)
    return HttpResponse(HTTPStatus.OK, (("content-type", asked.content_type),), body)


def _routes(tag: Tag | None) -> tuple[HttpRoute, ...]:
    return tuple(
        HttpRoute(
            "/metrics" if form is Form.AGGREGATED else f"/metrics/{form}",
            {"GET": Endpoint(tag, partial(get_metrics, form), TYPES)},
        )
        for form in Form
    )


METRIC_ROUTES: Final = _routes(Tag.MONITORING)
FOR_EVERYBODY: Final = _routes(None)
