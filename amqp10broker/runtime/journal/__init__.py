"""The data folder, the journal and its commits."""
