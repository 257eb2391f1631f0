"""Recordings: folders of flow events as Parquet. The layout is defined in `flowevents.schema`.

==========  =============================================================================================
`errors`    errors of recordings
`names`     run ids and prefixes of files
`sinks`     files that grow, and can be discarded
`arrow`     packed events and runs as Arrow columns
`parquet`   writes events part by part, reads them back
`runs`      rows of runs
==========  =============================================================================================

Nothing is imported here. Writing and reading Parquet needs pyarrow (the extras ``record`` and ``spark``).
"""
