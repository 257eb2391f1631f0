"""What queues are on disk: messages and decisions as records of the journal, and back."""
