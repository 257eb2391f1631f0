"""The message container that queues store and sessions deliver."""
