"""Queues and streams as a Spark data source: ``spark.read.format("amqp10")``.

Needs the extra ``spark`` (pyspark, pyarrow, pandas). The broker never imports this package, and nothing is
imported here: `register` is in `amqp10broker.spark.session`. The sources and the sink do not
import each other.
"""
