"""The wire protocols and what they share."""
