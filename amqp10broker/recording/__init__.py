"""Recordings: folders of flow events as Parquet. The layout is in `flowevents.schema`.

Nothing is imported here. What writes or reads Parquet needs pyarrow (the extras ``record`` and
``spark``) and says so when it is not there.
"""
