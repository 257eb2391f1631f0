"""The broker's side of both protocols, between the engines, which do not involve queues, and the tasks."""
