"""The persistence of queues: messages and decisions as records of the journal, and back."""
