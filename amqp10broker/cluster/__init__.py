"""What a node of a cluster does with Raft groups, and for queues that are elsewhere. Pure.

A group's member is `raft` with a log in the node's journal and a machine that applies it; `wire` is what
nodes send each other; lanes carry what sessions ask to the node where a queue is, each letter once. Sockets,
timers and tasks are `tasks`' business.
"""
