"""This node as a member of a cluster."""
