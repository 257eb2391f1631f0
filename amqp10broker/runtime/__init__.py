"""Every task, nursery, socket and timer of the broker."""
