"""Metrics as text for Prometheus, for monitoring users; a separate port has them without a login."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Final

from amqp10broker.api.calls import EndpointCall
from amqp10broker.api.front import Endpoint, HttpRoute, Tag
from amqp10broker.api.messages import HttpResponse
from amqp10broker.observe.metrics.table import TYPES, Form, wanted


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


ROUTES: Final = _routes(Tag.MONITORING)
FOR_EVERYBODY: Final = _routes(None)
