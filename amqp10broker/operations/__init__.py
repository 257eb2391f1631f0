"""The table of management operations, which all front ends share."""
