"""The numbers that flow events have for why something waits."""

from __future__ import annotations

from typing import Final

from amqp10broker.flowevents.schema import Reason
from amqp10broker.service.waits import Wait

NUMBERS: Final[dict[Wait | None, int]] = {
    None: int(Reason.NONE),
    **{wait: int(Reason[wait.name]) for wait in Wait},
}
