"""The timeline of one link or channel: its frames in a ring, and what credit and windows were behind each."""
