"""What the words of the report mean, for a reader who sees it for the first time."""

from __future__ import annotations

from typing import Final

WORDS: Final[tuple[tuple[str, str], ...]] = (
    (
        "170 / 400 / 256",
        ("Settings: max_link_credit / max_incoming_window / max_queue_credit."),
    ),
    (
        "throughput",
        (
            "Messages that clients received; if no client wrote that down, those confirmed (sent, if a "
            "stream has no confirms); else what the broker wrote to consumers; else what it took in. A "
            "second of the run, without its warm-up."
        ),
    ),
    (
        "confirm latency, end-to-end latency",
        (
            "From sending to the confirm, and from sending to receiving, measured in the client. Without "
            "a client's record, confirm latency is the broker's own: from arrival to the queue's confirm."
        ),
    ),
    (
        "waiting (stall)",
        (
            "A link waits when no delivery can move; the reason holds for the time since it was last "
            "looked at. The share is of the time of all links of that side. Consumers that wait because "
            "the queue is empty are not held up by anything: they are faster than the publishers."
        ),
    ),
    (
        "credit withheld",
        ("The broker grants no more credit: as many deliveries as allowed wait for their confirm."),
    ),
    (
        "no credit",
        ("The other end has granted no credit, or it is used up and the next grant is under way."),
    ),
    (
        "peer window closed",
        ("The receiving end of the session has no room for another transfer frame."),
    ),
    (
        "blocked by alarm",
        ("The broker holds publishers back: memory or disk is short."),
    ),
    (
        "queue credit in flight",
        (
            "The link has asked the queue for messages, and the answer is under way. If it is often, "
            "max_queue_credit is small: requests are larger with more of it."
        ),
    ),
    (
        "writer blocked",
        ("The socket takes no more: the client, or the network, reads too slowly."),
    ),
    (
        "queue empty",
        ("There is nothing to deliver: the consumer is faster than the publishers."),
    ),
    (
        "unsettled here, unsettled elsewhere",
        (
            "The queue has messages, and all of them are with consumers that have not settled them: with "
            "this one, or with others."
        ),
    ),
    (
        "messages not synced",
        ("The queue has messages that it hands out when the disk has them."),
    ),
    (
        "messages delayed",
        ("The queue has messages that were returned to it and wait until they are tried again."),
    ),
    (
        "not active",
        ("Another consumer of the queue is its single active one, or has a higher priority."),
    ),
    (
        "draining",
        ("The client has asked for what is there and for its credit back."),
    ),
    (
        "credit flow",
        (
            "AMQP 0-9-1: the connection is not read, because one of the queues that it publishes to does not "
            "follow."
        ),
    ),
    (
        "reader held",
        ("The connection is not read, because another session or channel of it waits."),
    ),
    (
        "timed out",
        ("The consumer let a delivery time out, and has not been heard of since."),
    ),
    (
        "unsettled incomplete",
        (
            "The client attached with an incomplete map of unsettled deliveries: the link gets no new ones "
            "before it attaches again."
        ),
    ),
    (
        "method in flight",
        ("AMQP 0-9-1: a queue was asked something for the client, and has not answered."),
    ),
    (
        "delivery unfinished",
        ("The client has sent a part of a delivery, and not the rest."),
    ),
    (
        "prefetch full",
        ("AMQP 0-9-1: the consumer holds as many unacknowledged deliveries as its prefetch allows."),
    ),
    (
        "credit, window and queue credit used",
        (
            "1 - what is left / the limit, weighted by time, between 0 and 100 %. Credit and window are "
            "what publishers have left of max_link_credit and max_incoming_window; queue credit is what a "
            "queue may still hand out of max_queue_credit."
        ),
    ),
    (
        "95 % interval",
        (
            "Of 100 such intervals 95 contain the true mean. Student's t over the repetitions; "
            "differences by the scatter of all settings together."
        ),
    ),
    (
        "as good",
        ("Within 5 % of the best mean. Of these the smallest settings are recommended."),
    ),
)
