"""The queue source: messages are moved from a queue into a spool, and rows are read from there.

=================  ======================================================================================
`source`           the readers for Spark
`offsets`          offsets of a streaming query, from spool and queue
`filler`           receive, write, sync, and only then settle
`link`             the receiver, connected on demand
`credit_pacing`    how much credit it grants, and which messages it keeps
`spool`            the folder that stores messages before they are settled
`segments`         its files as Arrow: written by the driver, read by tasks
`deduplication`    message-ids that are remembered
=================  ======================================================================================
"""
