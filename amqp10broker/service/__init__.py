"""The broker's side of both protocols, decided without being alive. Pure.

Between the engines (`amqp10`, `amqp091`), which know no queue, and the tasks, which know no protocol:
`sessions` serves AMQP 1.0 sessions and links, `channels` AMQP 0-9-1 channels; what both share is here.
"""
