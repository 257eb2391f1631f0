"""The cluster engines: membership, the metadata's group, and links to queues on other nodes."""
