"""The sink: rows become messages, at least once, each with its own message-id.

=============  ==========================================================================================
`writer`       the writers for Spark
`columns`      which columns a sink takes, and what each becomes
`encoding`     rows to encoded messages
`sending`      sends those of one task, until the broker has accepted each
=============  ==========================================================================================
"""
