"""The living room: every task, nursery, socket and timer of the broker."""
