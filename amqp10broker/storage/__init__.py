"""Files of the data folder: records, logs, the journal, and checks without a broker.

All calls block, and no module has a task or a clock: callers in `tasks/` decide when to call. Errors of the
system raise `StorageError`; a full disk raises `DiskFull`, after which the call can be repeated when there is
room.
"""
