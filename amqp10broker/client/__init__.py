"""The AMQP 1.0 client: the engine of `amqp10` driven from the connecting side.

==============  =========================================================================================
`core`          `ClientCore`: one connection and its sessions, without I/O: bytes in, bytes out
`session`       `ClientSession`: a session and its link ends, without I/O
`ends`          `SenderEnd`, `ReceiverEnd`, `Delivery`: the link ends of a session, without I/O
`checks`        checks of arguments that no frame can carry
`options`       `ClientOptions` and the default time-outs
`outcomes`      `Accepted`, `Rejected` ...: outcomes of messages
`url`           `parse_url`, addresses of queues and exchanges
`message`       `Message` and `data_message`: messages to and from bytes
`errors`        `ClientError` and its subclasses
`transport`     the blocking client's sockets, plain or under TLS
`driving`       the steps of a connection, and the states that they wait for, without I/O
`links`         the steps of links: `send_many`, `fetch` ...
`blocking`      the driver on a blocking socket: `connect`, `Client`, `Sender`, `Receiver`
`trio`          the driver on Trio, with the same methods; the only module here that imports it
`bulk`          the blocking client's receiver for many encoded messages
`management`    requests to the broker's management node, by the blocking client
==============  =========================================================================================

Nothing is imported here, so that a program pays only for the modules that it uses.
"""
