"""A broker for the tests of a program: the pytest plugin.

Nothing is imported here, so that a run without such a test has no cost. The user's documentation is
`docs/testing.md`.
"""
