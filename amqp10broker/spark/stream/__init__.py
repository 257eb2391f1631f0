"""The stream source: the driver decides on ranges of offsets, tasks read them (ADR 0019).

=============  ==========================================================================================
`source`       the readers that Spark asks
`bounds`       where a stream begins and ends now
`plan`         where reading begins, and how a range is cut for tasks
`offsets`      what Spark's checkpoint holds
`range`        what one task does
`pushdown`     conditions of a query that the broker, or the choice of offsets, takes over
=============  ==========================================================================================
"""
