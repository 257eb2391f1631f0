"""The rules, in words. `amqp10` and `amqp091` look for what they name; `docs/lint.md` lists them."""

from __future__ import annotations

from typing import Final

from amqp10broker.lint.findings import Rule, Sort

SECOND_NS: Final = 1_000_000_000
LONG_S: Final = 5
"""So long a link that has all it needs may be silent before its silence means something."""
HELD_LONG_S: Final = 30
"""A message that was held for so long waits for others' work."""
HELD_MANY: Final = 100
"""Deliveries that somebody holds."""
OFTEN: Final = 50
"""A habit, and no accident."""
FEW: Final = 10
LARGE_BYTES: Final = 1024 * 1024
IDLE_LINKS: Final = 50

FLOW_BEFORE_ATTACH: Final = Rule(
    "flow-before-attach",
    Sort.FAULT,
    "a receiver's flow with a delivery-count before the sender's attach was sent",
    "The delivery-count is the sender's, and known from its attach on. Credit counts from it: with a broker "
    "that begins elsewhere than at the guess, the receiver gets more messages than it asked for, or none.",
    "Leave delivery-count out of flows until the attach has come, or wait for it (part 2, section 2.7.4).",
)
CREDIT_NEVER_RENEWED: Final = Rule(
    "credit-never-renewed",
    Sort.RISK,
    f"a receiver that has used the credit of its only flow, settled all, and was silent for {LONG_S} s",
    "The link stays attached and gets nothing any more, whatever is in the queue.",
    "Send a flow with new credit when messages are settled, or detach the link.",
)
SETTLES_NOTHING: Final = Rule(
    "settles-nothing",
    Sort.RISK,
    f"a receiver that got at least {FEW} unsettled deliveries, the first {LONG_S} s ago, and settled none",
    "The messages stay the consumer's: others do not get them, and all of them come again when it goes.",
    "Send dispositions for what was processed, or attach with snd-settle-mode settled.",
)
UNSETTLED_GROWS: Final = Rule(
    "unsettled-grows",
    Sort.RISK,
    f"a consumer that settles some, and at the end holds at least {HELD_MANY} and half of all it got, the "
    f"oldest for {LONG_S} s",
    "It forgets some messages: their number grows until the broker or the client has no room, and they come "
    "again when it goes.",
    "Settle each delivery, also those that are skipped or have failed.",
)
HELD_TOO_LONG: Final = Rule(
    "held-too-long",
    Sort.COST,
    f"a message that was settled {HELD_LONG_S} s after it was delivered, with at least {HELD_MANY} held",
    "More credit, or prefetch, than the consumer processes: messages wait with it while other consumers are "
    "idle, and come again, out of order, when it goes.",
    "Grant what can be processed within a second or two; the rate times the round trip keeps the link busy.",
)
SETTLES_ONE_BY_ONE: Final = Rule(
    "settles-one-by-one",
    Sort.COST,
    f"{OFTEN} settlements that came together with the one before, continue it and say the same",
    "Each costs a frame to write and to read, on both sides: several times what a range costs.",
    "Settle neighbours with one disposition (first, last), or one basic.ack with multiple.",
)
CREDIT_ONE: Final = Rule(
    "credit-one",
    Sort.COST,
    f"{OFTEN} messages for each of which a credit of 1 was granted",
    "A round trip for each message: at 20 ms that is 50 messages a second, however fast both sides are.",
    "Grant more, and settle when processed: unsettled messages come again if the client fails.",
)
FLOWS_IN_VAIN: Final = Rule(
    "flows-in-vain",
    Sort.COST,
    f"{OFTEN} flows that say what the one before said, and more of them than deliveries",
    "Each is a frame that both sides read and that changes nothing.",
    "Send a flow when credit or window change; echo asks for one.",
)
DRAINS_IN_VAIN: Final = Rule(
    "drains-in-vain",
    Sort.COST,
    f"{OFTEN} drains in a row that brought no message",
    "It polls: each drain is a round trip, and a message that comes in between waits for the next one.",
    "Leave credit with the broker and wait for the message.",
)
ECHO_STORM: Final = Rule(
    "echo-storm",
    Sort.COST,
    f"{OFTEN} flows with echo within a second",
    "Each asks the broker for a flow in return.",
    "Ask for an echo when its answer is needed.",
)
WINDOW_NOT_REOPENED: Final = Rule(
    "window-not-reopened",
    Sort.RISK,
    f"a client's session whose incoming-window was used up, and which sent no flow for {LONG_S} s",
    "No link of the session gets anything, whatever its credit.",
    "Send a flow with a new incoming-window when transfers were taken, whether or not they are settled.",
)
BEYOND_CREDIT: Final = Rule(
    "beyond-credit",
    Sort.FAULT,
    "a transfer of a link that had no credit left",
    "The broker detaches the link (amqp:link:transfer-limit-exceeded).",
    "Send while delivery-count is below the last flow's delivery-count + link-credit.",
)
BEYOND_WINDOW: Final = Rule(
    "beyond-window",
    Sort.FAULT,
    "a transfer beyond the broker's incoming-window",
    "The broker ends the session (amqp:session:window-violation).",
    "Count transfers against the last flow's next-incoming-id + incoming-window.",
)
TAG_REUSED: Final = Rule(
    "tag-reused",
    Sort.FAULT,
    "a delivery with the delivery-tag of one that is unsettled on the same link",
    "Tags tell deliveries apart when a link is resumed; two of one name are one.",
    "Count, or use a UUID; reuse a tag when its delivery is settled (part 2, section 2.6.12).",
)
LINK_PER_MESSAGE: Final = Rule(
    "link-per-message",
    Sort.COST,
    f"{OFTEN} links to one address, one after the other, with at most one message each",
    "Attach and detach are four frames and two round trips around each message.",
    "Keep the link.",
)
SESSION_PER_MESSAGE: Final = Rule(
    "session-per-message",
    Sort.COST,
    f"{OFTEN} sessions or channels of a connection with at most one message each",
    "Each is set up and ended for one message: two round trips more.",
    "Keep the session or channel.",
)
CONNECTION_PER_MESSAGE: Final = Rule(
    "connection-per-message",
    Sort.COST,
    f"{FEW} connections of one host that ended within ten seconds, with at most one message each",
    "Each is a TCP connection, a login and five or more round trips: thousands of times the message's cost.",
    "Keep the connection; share it between threads or requests.",
)
IDLE_LINKS_RULE: Final = Rule(
    "idle-links",
    Sort.COST,
    f"at least {IDLE_LINKS} links of a connection that are attached for {LONG_S} s and carried nothing",
    "Each has its state in client and broker; often they are left over.",
    "Detach (closed) what is not needed any more.",
)
SENDS_SETTLED: Final = Rule(
    "sends-settled",
    Sort.RISK,
    f"{FEW} messages that were sent settled",
    "No outcome comes back: a message that was not routed, or not kept, is lost and nobody hears of it.",
    "Send unsettled and wait for the outcome, unless losing messages is meant.",
)
SENDS_REFUSED: Final = Rule(
    "sends-what-is-refused",
    Sort.RISK,
    f"a sender that goes on after {FEW} of its messages in a row were rejected or released",
    "They are in no queue.",
    "Look at the outcome: rejected says why; released means that no queue is bound, or none took it.",
)
ONE_IN_FLIGHT: Final = Rule(
    "one-in-flight",
    Sort.COST,
    f"{OFTEN} messages, each sent only after the confirm of the one before",
    "The rate is that of round trips and syncs of the disk: with more in flight many share one sync.",
    "Send on while confirms are under way, and look at each when it comes.",
)
RETURNS_EVERYTHING: Final = Rule(
    "returns-everything",
    Sort.RISK,
    f"a consumer that gave back {OFTEN} messages and accepted none",
    "The same messages go round and round, at full speed.",
    "Reject what cannot be processed (it is dead-lettered then), or wait before giving it back.",
)
NO_MESSAGE_LIMIT: Final = Rule(
    "no-message-limit",
    Sort.RISK,
    f"a receiver without max-message-size that gets a message of {LARGE_BYTES} bytes or more",
    "Whoever publishes decides how much memory it takes.",
    "Set max-message-size in the attach.",
)
NO_HEARTBEAT: Final = Rule(
    "no-heartbeat",
    Sort.RISK,
    "an open without idle-time-out, or connection.tune-ok with heartbeat 0",
    "If the network fails without a word, this side waits for ever.",
    "Set an idle-time-out, or heartbeats, of some 10 to 60 seconds.",
)
ENDED_BY_ERROR: Final = Rule(
    "ended-by-error",
    Sort.FAULT,
    "a link, session, channel or connection that the broker ended with an error; not by force from outside",
    "What was under way on it is not done.",
    "Read the condition and the text: they name the cause.",
)
DECLARES_AGAIN: Final = Rule(
    "declares-again",
    Sort.COST,
    f"{OFTEN} declarations of something that the connection has declared before",
    "Each is a round trip, and in a cluster a look at what all nodes agree on.",
    "Declare once a connection.",
)
UNCONFIRMED: Final = Rule(
    "unconfirmed",
    Sort.RISK,
    f"{FEW} persistent messages on a channel without confirms or transactions",
    "If the broker or the connection fails before they are kept, they are lost and nobody hears of it.",
    "confirm.select, and wait for basic.ack.",
)
PREFETCH_UNLIMITED: Final = Rule(
    "prefetch-unlimited",
    Sort.RISK,
    f"a consumer without prefetch that acknowledges, and held {HELD_MANY} or more",
    "The broker sends all that the queue has: the client's memory is the limit, and others get nothing.",
    "basic.qos with what can be processed within a second or two.",
)
AUTO_ACK: Final = Rule(
    "auto-ack",
    Sort.RISK,
    f"a consumer without acknowledgements that got {FEW} persistent messages",
    "They are gone when they are written to the socket: what was not processed yet is lost with the client.",
    "Consume with no-ack false, and acknowledge what was processed.",
)
RETURNS_IGNORED: Final = Rule(
    "returns-ignored",
    Sort.RISK,
    f"a publisher that goes on to an exchange and key after {FEW} of its messages there were returned",
    "They are in no queue.",
    "Handle basic.return: bind a queue, or stop.",
)
POLLS: Final = Rule(
    "polls",
    Sort.COST,
    f"{OFTEN} basic.get, four of five of them answered by get-empty",
    "Each is a round trip for nothing, and a message waits for the next one.",
    "basic.consume: the broker sends messages when they come.",
)
NO_CANCEL_NOTICE: Final = Rule(
    "no-cancel-notice",
    Sort.RISK,
    "a consumer of a client without the capability consumer_cancel_notify",
    "If its queue is deleted the client is not told, and waits for ever.",
    "Use a client library that has the capability, and handle basic.cancel.",
)
PUBLISHES_BLOCKED: Final = Rule(
    "publishes-while-blocked",
    Sort.COST,
    f"{FEW} publishes a second after connection.blocked, before connection.unblocked",
    "The broker has stopped to read: they wait in buffers of both sides, and heartbeats wait behind them.",
    "Stop to publish until connection.unblocked.",
)
COMMIT_PER_MESSAGE: Final = Rule(
    "commit-per-message",
    Sort.COST,
    f"{OFTEN} transactions with one message each",
    "Each commit waits for the disk: confirms do the same for many messages at once.",
    "Put more into a transaction, or use confirms.",
)

RULES: Final = {rule.id: rule for rule in list(vars().values()) if isinstance(rule, Rule)}
