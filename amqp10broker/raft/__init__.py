"""Members of Raft groups: election, log, commitment. Pure.

Messages, time and proposals go in (`core.Raft`); records to write, messages to send and entries to apply come
out (`messages.Ready`), and `persisted` goes back in. `groups` has all members of a node.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), here "the paper";
Ongaro, "Consensus: Bridging Theory and Practice" (2014), here "the dissertation".
"""
