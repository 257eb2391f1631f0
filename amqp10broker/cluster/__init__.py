"""The cluster engines: Raft members of queues and of the metadata, and links to queues at other nodes. Pure.

A member is `raft` with a log in the node's journal and a machine that applies it. `wire` is the protocol
between nodes. A link carries the commands of sessions to the node of a queue, each command once. `runtime`
has the sockets, timers and tasks.
"""
