"""Flow events and the buffer that holds them until they are written."""
