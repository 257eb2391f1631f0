"""Analyses recorded flow events: the PySpark job behind ``amqp10broker analyse`` (`docs/analysis.md`).

================  =======================================================================================
`inputs`          which runs and files a recording has
`cells`           the one pass of Spark over the events: sums by run, kind, reason, stream and bucket
`histogram`       log-histograms and their quantiles; pure
`figures`         the figures of one run; pure
`configurations`  repetitions combined, groups, comparisons; pure
`statistics`      Student's intervals, and the scatter of repetitions; pure
`recommend`       the smallest settings that are as good as the best, and why; pure
`evidence`        weaknesses of that; pure
`tables`          CSV and Parquet
`report`          the page, by the template `report.html`; its pictures are by `pictures` and `drawing`
`messages`        the recommendations for a terminal
`job`             all steps in order
`follow`          the same cells by seconds of a recording that grows: Structured Streaming
`what_if`         forecasts of `replay` over many files of recorded frames, a file a task
`session`         the Spark session; `progress` and `errors` serve all
================  =======================================================================================

Needs the extra ``spark``. The broker never imports this package, and nothing is imported here.
"""
