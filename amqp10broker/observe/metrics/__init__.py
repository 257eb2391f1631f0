"""Metrics in Prometheus' formats: definitions, gathering in small steps, and text."""
