"""The cluster engines: membership, the metadata's group, and links to queues at other nodes."""
