"""The broker's side of both protocols, between the engines, which have no queues, and the tasks."""
