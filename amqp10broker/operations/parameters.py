"""Operations on parameters of plugins, and on global parameters, which the broker stores without use."""

from __future__ import annotations

from typing import Annotated, Any

from amqp10broker.errors import BadRequest
from amqp10broker.metadata.vhost_requests import ClearGlobalParameter, ClearParameter, SetGlobalParameter
from amqp10broker.operations.arguments import Name
from amqp10broker.operations.caller import Caller, Steps
from amqp10broker.operations.operation import operation


@operation("clear-parameter", "parameter")
def clear_parameter(
    caller: Caller, component: Annotated[str, "the plugin's name of its kind"], name: Name
) -> Steps[None]:
    """Delete a parameter of a RabbitMQ plugin that came with definitions.

    Raises `NotFound`.
    """
    yield from caller.change(ClearParameter(caller.vhost.name, component, name))


@operation("set-global-parameter", "parameter")
def set_global_parameter(caller: Caller, name: Name, value: Annotated[Any, "any JSON value"]) -> Steps[None]:
    """Store any value under a name.

    Raises `BadRequest` if the name is empty.
    """
    if not name:
        raise BadRequest("global parameter", "the parameter has no name: give one")
    yield from caller.change(SetGlobalParameter(name, value))


@operation("clear-global-parameter", "parameter")
def clear_global_parameter(caller: Caller, name: Name) -> Steps[None]:
    """Delete the value under a name.

    Raises `NotFound`.
    """
    yield from caller.change(ClearGlobalParameter(name))
