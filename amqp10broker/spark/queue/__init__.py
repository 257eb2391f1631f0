"""The queue source: messages are taken out of a queue into a spool, and rows come from there (ADR 0020).

=================  ======================================================================================
`source`           the readers that Spark asks
`offsets`          what a streaming query asks, answered from spool and queue
`filler`           receive, write, sync, and only then settle
`link`             the receiver, connected when it is needed
`credit_pacing`    how much credit it grants, and what it keeps of what comes
`spool`            the folder in which messages stand before they are settled
`segments`         its files as Arrow: written by the driver, read by tasks
`deduplication`    message-ids that are remembered
=================  ======================================================================================
"""
