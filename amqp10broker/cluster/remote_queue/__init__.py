"""Links from a node to queues at other nodes, and to replicated ones."""
