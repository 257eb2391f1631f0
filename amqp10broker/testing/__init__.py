"""A broker for the tests of a program: the pytest plugin.

==============  =========================================================================================
`plugin`        loaded by pytest: options, fixtures, the report; it imports pytest alone
`servers`       the brokers of one run, shared by tests with the same settings
`server`        their common interface, a protocol
`in_process`    a broker in a thread of this process
`process`       a broker in a separate process, which runs `child`
`broker`        `AmqpBroker`, the value of the fixtures
`assertions`    assertions about a test's links
`faults`        faults that a test can inject
`frames`        the last frames of each connection, and its waits
`report`        the report of a failed test
==============  =========================================================================================

Nothing is imported here, so that a run without such a test has no cost. The user's documentation is
`docs/testing.md`.
"""
