"""Observers of sessions, channels, connections and queues, which produce flow events. Pure.

An observer reads the counters and the wait of one object, compares them with the last observation, and emits
an event for the difference. The objects themselves are not involved, so a broker that does not record has no
cost. The task `runtime.observe.flow_sampler` decides when to observe.

The values of an event for its elapsed time (`reason`, `link_credit`, `incoming_window`, `queue_credit`,
`queue_depth`) are those of the observation before, which held during that time.
"""
