"""What the broker shows of itself: frames, timelines, flow events, metrics, traces."""
