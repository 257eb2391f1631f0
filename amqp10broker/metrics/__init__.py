"""Metrics in Prometheus' formats: what there is, gathered in small steps, written as text. Pure."""
