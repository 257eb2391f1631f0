"""Recordings: folders of flow events as Parquet. The layout is in `flowevents.schema`.

==========  =============================================================================================
`errors`    what can be wrong with a recording
`names`     run ids and prefixes of files
`sinks`     files that grow, and can be given up
`arrow`     packed events and runs as Arrow columns
`parquet`   writes events part by part, reads them back
`runs`      rows of runs
==========  =============================================================================================

Nothing is imported here. What writes or reads Parquet needs pyarrow (the extras ``record`` and
``spark``) and says so when it is not there.
"""
