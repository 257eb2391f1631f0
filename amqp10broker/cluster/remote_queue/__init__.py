"""The two ends of the links from a node to queues at other nodes, or replicated ones."""
