"""The client room: the engine of `amqp10` driven from the connecting side.

==============  =========================================================================================
`core`          `ClientCore`: one connection and its sessions, pure: bytes in, bytes out
`session`       `ClientSession`: a session and its link ends, pure
`ends`          `SenderEnd`, `ReceiverEnd`, `Delivery`: the link ends of a session, pure
`checks`        arguments that no frame can carry, refused where they are given
`options`       `ClientOptions` and the default time-outs
`outcomes`      `Accepted`, `Rejected` ...: what becomes of a message
`url`           `parse_url`, addresses of queues and exchanges
`message`       `Message` and `data_message`: what a program says, to and from bytes
`errors`        `ClientError` and what is under it
`transport`     the blocking client's sockets, plain or under TLS
`driving`       what a connection does step by step, and what each step waits for, pure
`links`         `send_many`, `fetch` ...: the same of links, pure
`blocking`      the driver on a blocking socket: `connect`, `Client`, `Sender`, `Receiver`
`trio`          the driver on Trio, with the same methods; the only module here that imports it
`bulk`          the blocking client's receiver for many messages: encoded messages by the thousand
`management`    requests to the broker's management node, by the blocking client
==============  =========================================================================================

Nothing is imported here, so that a program pays for no more than the module that it uses.
"""
