"""Links from a node to queues on other nodes, and to replicated ones."""
