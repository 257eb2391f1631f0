import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;

/** Messages of each type, their headers, and temporary queues. */
final class Messages extends Cases {
    interface Make {
        Message make(Session session) throws Exception;
    }

    interface Read {
        Object read(Message message) throws Exception;
    }

    /** A message that was sent to a queue and received from it, as it is read then. */
    static Object through(String name, Make make, Read read) throws Exception {
        try (Connection connection = connect(null)) {
            Session session = session(connection);
            Queue queue = session.createQueue(prefix + name);
            session.createProducer(queue).send(make.make(session));
            return read.read(session.createConsumer(queue).receive(PATIENCE));
        }
    }

    public static void main(String[] arguments) {
        begin(arguments);
        run("text", () -> through("text", session -> session.createTextMessage("a text"),
            message -> ((TextMessage) message).getText()));
        run("bytes", () -> through("bytes", session -> {
            BytesMessage message = session.createBytesMessage();
            message.writeInt(7);
            message.writeUTF("seven");
            return message;
        }, message -> ((BytesMessage) message).readInt() + ((BytesMessage) message).readUTF()));
        run("map", () -> through("map", session -> {
            MapMessage message = session.createMapMessage();
            message.setLong("long", 1L << 40);
            message.setString("string", "s");
            message.setBoolean("boolean", true);
            return message;
        }, message -> {
            MapMessage map = (MapMessage) message;
            return map.getLong("long") + map.getString("string") + map.getBoolean("boolean");
        }));
        run("stream", () -> through("stream", session -> {
            StreamMessage message = session.createStreamMessage();
            message.writeDouble(1.5);
            message.writeString("s");
            return message;
        }, message -> ((StreamMessage) message).readDouble() + ((StreamMessage) message).readString()));
        run("object", () -> through("object", session -> session.createObjectMessage(new ArrayList<>(List.of("a", 2))),
            message -> ((ObjectMessage) message).getObject()));
        run("none", () -> through("none", session -> {
            Message message = session.createMessage();
            message.setStringProperty("p", "without a body");
            return message;
        }, message -> message.getStringProperty("p") + (message instanceof TextMessage)));
        run("headers", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "headers");
                Message message = session.createTextMessage("x");
                message.setJMSType("type");
                message.setJMSCorrelationID("correlation");
                message.setJMSReplyTo(session.createQueue(prefix + "reply"));
                MessageProducer producer = session.createProducer(queue);
                producer.send(message, DeliveryMode.NON_PERSISTENT, 7, 60_000);
                Message got = session.createConsumer(queue).receive(PATIENCE);
                return got.getJMSType() + " " + got.getJMSCorrelationID() + " " + got.getJMSPriority() + " "
                    + (got.getJMSDeliveryMode() == DeliveryMode.NON_PERSISTENT) + " "
                    + (got.getJMSExpiration() == message.getJMSExpiration()) + " "
                    + got.getJMSReplyTo().equals(message.getJMSReplyTo()) + " "
                    + got.getJMSDestination().equals(queue) + " "
                    + got.getJMSMessageID().equals(message.getJMSMessageID());
            }
        });
        run("priorities", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "priorities");
                MessageProducer producer = session.createProducer(queue);
                for (int priority : new int[] {0, Message.DEFAULT_PRIORITY, 9, 5, Message.DEFAULT_PRIORITY, 3}) {
                    producer.send(session.createTextMessage("" + priority), DeliveryMode.PERSISTENT, priority, 0);
                }
                MessageConsumer consumer = session.createConsumer(queue);
                StringBuilder order = new StringBuilder();
                for (int each = 0; each < 6; each++) {
                    order.append(((TextMessage) consumer.receive(PATIENCE)).getText());
                }
                return order;
            }
        });
        run("expired", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "expired");
                MessageProducer producer = session.createProducer(queue);
                producer.setTimeToLive(1);
                producer.send(session.createTextMessage("expires"));
                Thread.sleep(20);
                return now(session.createConsumer(queue));
            }
        });
        run("request and reply by a temporary queue", () -> {
            try (Connection asks = connect(null); Connection answers = connect(null)) {
                Session session = session(asks);
                Queue queue = session.createQueue(prefix + "requests");
                TemporaryQueue replies = session.createTemporaryQueue();
                MessageConsumer consumer = session.createConsumer(replies);
                Message request = session.createTextMessage("what?");
                request.setJMSReplyTo(replies);
                session.createProducer(queue).send(request);
                Session other = session(answers);
                Message got = other.createConsumer(queue).receive(PATIENCE);
                Message reply = other.createTextMessage("that.");
                reply.setJMSCorrelationID(got.getJMSMessageID());
                other.createProducer(null).send(got.getJMSReplyTo(), reply);
                Message heard = consumer.receive(PATIENCE);
                return ((TextMessage) heard).getText()
                    + heard.getJMSCorrelationID().equals(request.getJMSMessageID());
            }
        });
        run("a temporary queue is its connection's", () -> {
            try (Connection connection = connect(null); Connection another = connect(null)) {
                Session session = session(connection);
                TemporaryQueue queue = session.createTemporaryQueue();
                String refused = "-";
                try {
                    session(another).createConsumer(queue);
                } catch (jakarta.jms.JMSException error) {
                    refused = error.getClass().getSimpleName();
                }
                queue.delete();
                try {
                    session.createProducer(queue).send(session.createTextMessage("late"));
                } catch (jakarta.jms.JMSException error) {
                    return refused + " " + error.getClass().getSimpleName();
                }
                return refused + " sent";
            }
        });
    }
}
