"""Observation of the broker: frames, timelines, flow events, metrics, traces."""
