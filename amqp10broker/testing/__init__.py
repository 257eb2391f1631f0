"""A broker inside the tests of a program: the plugin of pytest.

==============  =========================================================================================
`plugin`        what pytest loads: options, fixtures, the report; it imports pytest alone
`servers`       the brokers of one run: which test gets which one
`server`        what they have in common, as a protocol
`in_process`    a broker in a thread of this process
`process`       a broker in a process of its own; `child` is what runs there
`broker`        `AmqpBroker`: what a fixture gives a test
`assertions`    what a test can demand of its links
`faults`        what a test can have the broker do wrong
`frames`        the last frames of each connection, and what it waited for
`report`        what is said of a test that failed
==============  =========================================================================================

Nothing is imported here, so that a run without such a test pays for nothing. What users see of it is in
`docs/testing.md`.
"""
