"""The wire protocols."""
