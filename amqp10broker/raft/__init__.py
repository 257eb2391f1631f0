"""Members of Raft groups: election, log, commitment.

The core (`core.Raft`) takes messages, time and proposals, and returns records to write, messages to send and
entries to apply (`messages.Ready`); then the caller reports `persisted`. `groups` has all members of a node.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), here "the paper";
Ongaro, "Consensus: Bridging Theory and Practice" (2014), here "the dissertation".
"""
