"""Files of the data folder. All calls block, and no module has a task or a clock.

Errors of the system raise `StorageError`; a full disk raises `DiskFull`, after which the call can be repeated
when there is room.
"""
