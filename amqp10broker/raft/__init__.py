"""One member of one Raft group: who leads, what is in the log, what is committed. Pure.

Messages, time and proposals go in (`core.Raft`), what is to be written, sent and applied comes out
(`ready.Ready`), and `persisted` goes back in. The room knows no disk, no queue, no socket, no other group.

Sources: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (2014), here "the paper";
Ongaro, "Consensus: Bridging Theory and Practice" (2014), here "the dissertation".
"""
