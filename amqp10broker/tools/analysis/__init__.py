"""Analyses recorded flow events: the PySpark job behind ``amqp10broker record analyse`` (`docs/analysis.md`).

`cells` reads the events in one pass of Spark; `job` runs all steps of the batch, and `follow` those of a
recording that grows. Needs the extra ``spark``. The broker never imports this package, and nothing is
imported here.
"""
