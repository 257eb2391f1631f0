"""Queues and streams as a Spark data source: ``spark.read.format("amqp10")``.

Needs the extra ``spark`` (pyspark, pyarrow, pandas). The broker never imports this room, and nothing is
imported here: `register` comes from `amqp10broker.spark.register`. Sources and sink are rooms of their own,
`queue`, `stream` and `sink`, which know nothing of each other; what is here serves all of them.
"""
