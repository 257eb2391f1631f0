"""The sink: rows become messages, at least once, each with a message-id of its own.

=============  ==========================================================================================
`writer`       the writers that Spark asks
`columns`      which columns a sink takes, and what each becomes
`encoding`     rows to encoded messages
`sending`      sends those of one task, and sees to it that the broker takes each of them over
=============  ==========================================================================================
"""
