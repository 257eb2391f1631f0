"""The broker's side of both protocols. Pure: no tasks, no input or output.

It is between the engines (`amqp10`, `amqp091`), which do not involve queues, and the tasks, which do not
involve protocols: `sessions` serves AMQP 1.0 sessions and links, `channels` AMQP 0-9-1 channels; code for
both is here.
"""
