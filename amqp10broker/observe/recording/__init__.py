"""Recordings: folders of flow events as Parquet. The layout is defined in `observe.flow_events`.

Nothing is imported here. Writing and reading Parquet needs pyarrow (the extras ``record`` and ``spark``).
"""
