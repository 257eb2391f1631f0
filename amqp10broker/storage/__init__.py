"""Files of the data folder: records, logs, the journal, and reading them without a broker.

Everything blocks and nothing is alive here: no task, no clock. Whoever calls decides when (`tasks/`).
"""
