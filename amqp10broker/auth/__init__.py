"""Authentication of clients, and their permissions."""
