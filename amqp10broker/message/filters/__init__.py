"""What a consumer of a stream asks for: where to begin, which chunks to read, which messages to be given."""
