"""Observers: what sessions, channels, connections and queues do, as flow events. Pure.

An observer looks at one thing's counters and at why it waits, compares with what it saw last, and gives an
event of the difference. Nothing in the things themselves knows that it is observed, so a broker that does
not record pays nothing. When somebody looks is decided in the living room (`tasks.flow_sampler`).

===========  ============================================================================================
`samples`    what a look finds, of each link, channel and consumer of either protocol
`trail`      what was seen last of one of them, and the events that follow
`latency`    how long deliveries wait for a confirm, or to be settled
`observer`   a session or channel
`others`     connections, queues, the process
===========  ============================================================================================

What an event says of its elapsed time (`reason`, `link_credit`, `incoming_window`, `queue_credit`,
`queue_depth`) is what held during it: as the observation before had found it.
"""
