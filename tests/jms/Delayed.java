import jakarta.jms.Connection;
import jakarta.jms.JMSContext;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Delays of delivery. */
final class Delayed extends Cases {
    static final long DELAY = 300;

    /** Send with a delay. */
    static void sendLater(Session session, jakarta.jms.Destination to, String text, long delay) throws Exception {
        MessageProducer producer = session.createProducer(to);
        producer.setDeliveryDelay(delay);
        producer.send(session.createTextMessage(text));
        producer.close();
    }

    /** The text of the next message, and whether its time has come. */
    static String inTime(MessageConsumer consumer) throws Exception {
        Message message = consumer.receive(PATIENCE);
        boolean come = message.getJMSDeliveryTime() <= System.currentTimeMillis();
        return ((TextMessage) message).getText() + " " + come;
    }

    public static void main(String[] arguments) {
        begin(arguments);
        run("a queue", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "queue");
                MessageConsumer consumer = session.createConsumer(queue);
                sendLater(session, queue, "latest", 2 * DELAY);
                sendLater(session, queue, "later", DELAY);
                session.createProducer(queue).send(session.createTextMessage("now"));
                List<String> found = new ArrayList<>();
                for (int each = 0; each < 3; each++) {
                    found.add(inTime(consumer));
                }
                Collections.sort(found);
                return found;
            }
        });
        run("a topic", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Topic topic = session.createTopic(prefix + "topic");
                MessageConsumer one = session.createConsumer(topic);
                MessageConsumer other = session.createConsumer(topic);
                sendLater(session, topic, "later", DELAY);
                return inTime(one) + ", " + inTime(other);
            }
        });
        run("a context", () -> {
            try (JMSContext context = new JmsConnectionFactory("guest", "guest", url).createContext()) {
                Queue queue = context.createQueue(prefix + "context");
                context.createProducer().setDeliveryDelay(DELAY).send(queue, "later");
                return context.createConsumer(queue).receiveBody(String.class, PATIENCE);
            }
        });
        run("it is not there yet", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "not yet");
                sendLater(session, queue, "in an hour", 3_600_000);
                boolean seen = session.createBrowser(queue).getEnumeration().hasMoreElements();
                return now(session.createConsumer(queue)) + seen;
            }
        });
        run("a transaction", () -> {
            try (Connection connection = connect(null)) {
                Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
                Queue queue = session.createQueue(prefix + "transaction");
                sendLater(session, queue, "later", DELAY);
                session.commit();
                return inTime(session.createConsumer(queue));
            }
        });
    }
}
