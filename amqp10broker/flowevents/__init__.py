"""Flow events and the buffer that holds them until they are written.

===========  ============================================================================================
`schema`     the definition of an event and of a run; every other form is derived from it
`ring`       a bounded buffer of packed events that drops and counts events instead of blocking
===========  ============================================================================================
"""
