"""The files of the management page, readable without a login. Their data comes from the API, with one.

Paths within the page are relative, so that it works below a prefix, and behind a proxy that adds one.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from amqp10broker.api.calls import EndpointCall, RunEndpoint
from amqp10broker.api.front import not_found
from amqp10broker.api.messages import HttpResponse
from amqp10broker.api.routes import Endpoint, HttpRoute
from amqp10broker.api.static_files import FOLDERS, INDEX, answer_of, to_folder


async def get_index(call: EndpointCall) -> HttpResponse:
    """Return the index of the page."""
    return await _answer(call, INDEX) if call.request.slash else to_folder(call.request)


async def get_file(folder: str, call: EndpointCall) -> HttpResponse:
    """Return a file of the page; `folder` ends with a slash."""
    return await _answer(call, folder + call.values["file"])


async def _answer(call: EndpointCall, path: str) -> HttpResponse:
    found = await call.broker_api.page_file(path)
    if found is None:
        raise not_found()
    return answer_of(call.request, found)


_TEXT: Final = ("text/html", "text/*", "*/*")
_ANY: Final = ("text/javascript", "text/css", "text/html", "image/svg+xml", "text/*", "image/*", "*/*")


def _folder(folder: str) -> HttpRoute[RunEndpoint]:
    return HttpRoute(f"/{folder}{{file}}", {"GET": Endpoint(None, partial(get_file, folder), _ANY)})


ROUTES: Final[tuple[HttpRoute[RunEndpoint], ...]] = (
    HttpRoute("/", {"GET": Endpoint(None, get_index, _TEXT)}),
    *map(_folder, FOLDERS),
)
