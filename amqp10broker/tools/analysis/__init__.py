"""Analyses recorded flow events: the PySpark job behind ``amqp10broker analyse`` (`docs/analysis.md`).

`cells` reads the events in one pass of Spark; the modules after it compute without Spark, and `job` runs all
steps. Needs the extra ``spark``. The broker never imports this package, and nothing is imported here.
"""
