"""The stream source: the driver decides on ranges of offsets, tasks read them.

=============  ==========================================================================================
`source`       the readers for Spark
`bounds`       where a stream begins and ends now
`plan`         where reading begins, and how a range is cut for tasks
`offsets`      the contents of Spark's checkpoint
`range`        the work of one task
`pushdown`     conditions of a query that the broker, or the choice of offsets, evaluates
=============  ==========================================================================================
"""
