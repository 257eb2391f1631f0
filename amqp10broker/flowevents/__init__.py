"""Flow events: what they are, and where they wait until somebody writes them. Pure.

===========  ============================================================================================
`schema`     the one definition of an event and of a run; every other form is derived from it
`ring`       a bounded buffer of packed events that drops, and counts, rather than wait
===========  ============================================================================================
"""
