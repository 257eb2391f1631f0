"""What recorded flow events say: the PySpark job behind ``amqp10broker analyse``.

Needs the extra ``spark``. The broker never imports this room, and nothing is imported here.
"""
