"""What is declared on this broker."""
