"""RabbitMQ's credit_flow, the back-pressure of AMQP 0-9-1: reader -> channel -> queue.

Each pair of sender and receiver among them has a counter. The sender may send until it is used up, and then
stops *everything*, whatever its destination. The receiver returns `more_after` whenever it has handled so
many, unless it is held up itself: then it does so when it continues. So a slow queue stops a channel, the
channel stops the reader, and the reader stops the whole connection.
"""

from __future__ import annotations

from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import Item
from amqp10broker.protocols.amqp091.items import ContentTooLarge, PublishRun


@dataclass(frozen=True, slots=True)
class CreditFlowSettings:
    """The numbers of messages in `credit_flow_default_credit` of RabbitMQ. `more_after`: the receiver returns
    so much after handling as many; not more than `initial`, or a sender would wait for ever.
    """

    initial: int = 400
    more_after: int = 200

    @classmethod
    def of(cls, config: Config) -> CreditFlowSettings:
        initial = config.credit_flow_initial
        return cls(initial, min(config.credit_flow_more_after, initial))


class CreditSender:
    """The sending end of one pair; `credit` is below 0 when it had to finish what it had begun."""

    __slots__ = ("credit",)

    def __init__(self, settings: CreditFlowSettings) -> None:
        self.credit = settings.initial

    @property
    def blocked(self) -> bool:
        return self.credit <= 0

    def admit(self, item: Item) -> tuple[Item | None, Item | None]:
        """Spend credit on an item; return the part that may be sent now, and the part that has to wait."""
        contents = contents_of(item)
        if contents <= self.credit:
            self.credit -= contents
            return item, None
        if self.credit <= 0 or not isinstance(item, PublishRun):
            return None, item
        now, rest = _split(item, self.credit)
        self.credit = 0
        return now, rest


class CreditReceiver:
    """The receiving end of one pair. `unreturned`: messages that were handled, and whose credit is not
    returned to the sender.
    """

    __slots__ = ("more_after", "unreturned")

    def __init__(self, settings: CreditFlowSettings) -> None:
        self.more_after = settings.more_after
        self.unreturned = 0

    def take_grant(self) -> int:
        """Return the credit to grant now, in whole portions. Must not be called while held up."""
        portions = self.unreturned // self.more_after
        self.unreturned -= portions * self.more_after
        return portions * self.more_after


def contents_of(item: Item) -> int:
    """Return the number of contents in one item of the frame reader, which the credit flow counts."""
    if type(item) is PublishRun:
        return len(item.bodies)
    return 1 if type(item) is ContentTooLarge else 0


def _split(run: PublishRun, count: int) -> tuple[PublishRun, PublishRun]:
    first = PublishRun(run.channel, run.exchange, run.routing_key, run.mandatory, run.immediate)
    rest = PublishRun(run.channel, run.exchange, run.routing_key, run.mandatory, run.immediate)
    first.properties, rest.properties = run.properties[:count], run.properties[count:]
    first.bodies, rest.bodies = run.bodies[:count], run.bodies[count:]
    return first, rest
