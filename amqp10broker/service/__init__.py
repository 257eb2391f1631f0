"""The broker's side of AMQP 1.0 sessions and links: publishers, consumers, and why they wait.

Between the engine (`amqp10`), which knows no queue, and the tasks, which know no protocol. Pure.
"""
