"""The same with aio-pika, in a test of pytest-asyncio.

The broker runs in a thread of its own, so a call of the fixture answers while the test's loop waits for it.
What waits for the program under test (`assert_...`, `get` with a time) is called in a thread: the program
needs the loop meanwhile.
"""

import asyncio

import aio_pika
import pytest


@pytest.mark.asyncio
async def test_a_topic_reaches_its_queue(amqp_broker):
    amqp_broker.declare_exchange("news", "topic")
    amqp_broker.declare("sport")
    amqp_broker.bind("news", "sport", "*.sport")

    async with await aio_pika.connect(amqp_broker.url) as connection:
        channel = await connection.channel()
        news = await channel.get_exchange("news")
        await news.publish(aio_pika.Message(b"goal"), routing_key="local.sport")
        assert amqp_broker.queue("sport").ready == 1

        sport = await channel.get_queue("sport")
        async with sport.iterator() as messages:
            async for message in messages:
                async with message.process():
                    assert message.body == b"goal"
                break
        await asyncio.to_thread(amqp_broker.assert_drained, "sport")
