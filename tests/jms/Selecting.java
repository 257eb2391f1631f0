import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.Enumeration;

/** Selectors and browsers on queues. */
final class Selecting extends Cases {
    /** A queue with ten messages 0 to 9, red and blue in turns, the first five of type low. */
    static Queue queue(Session session, String name) throws Exception {
        Queue queue = session.createQueue(prefix + name);
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 10; number++) {
            TextMessage message = session.createTextMessage(String.valueOf(number));
            message.setIntProperty("n", number);
            message.setStringProperty("colour", number % 2 == 0 ? "red" : "blue");
            message.setJMSType(number < 5 ? "low" : "high");
            producer.send(message);
        }
        producer.close();
        return queue;
    }

    static String browse(Session session, Queue queue, String selector) throws Exception {
        StringBuilder found = new StringBuilder();
        QueueBrowser browser = session.createBrowser(queue, selector);
        Enumeration<?> messages = browser.getEnumeration();
        while (messages.hasMoreElements()) {
            found.append(((TextMessage) messages.nextElement()).getText());
        }
        browser.close();
        return found.toString();
    }

    static String all(MessageConsumer consumer) throws Exception {
        StringBuilder found = new StringBuilder();
        for (String text = now(consumer); !text.equals("-"); text = now(consumer)) {
            found.append(text);
        }
        return found.toString();
    }

    public static void main(String[] arguments) {
        begin(arguments);
        run("a browser takes nothing", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = queue(session, "browse");
                return browse(session, queue, null) + " " + browse(session, queue, null)
                    + " " + all(session.createConsumer(queue));
            }
        });
        run("a browser with a selector", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                return browse(session, queue(session, "select"), "colour = 'blue' AND n BETWEEN 2 AND 8");
            }
        });
        run("consumers with selectors", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = queue(session, "consume");
                MessageConsumer red = session.createConsumer(queue, "colour = 'red' AND JMSType = 'high'");
                MessageConsumer blue = session.createConsumer(queue, "colour = 'blue'");
                String found = all(red) + " " + all(blue);
                red.close();
                blue.close();
                return found + " " + all(session.createConsumer(queue));
            }
        });
        run("what is missing is unknown", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = queue(session, "missing");
                return browse(session, queue, "weight <> 5") + browse(session, queue, "NOT (weight = 1)")
                    + browse(session, queue, "weight IS NULL AND n > 7");
            }
        });
        run("recovered, and selected again", () -> {
            try (Connection connection = connect(null)) {
                Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(queue(session, "recover"), "n >= 7");
                next(consumer);
                session.recover();
                Message again = consumer.receive(PATIENCE);
                return ((TextMessage) again).getText() + " " + again.getJMSRedelivered();
            }
        });
        run("a selector that is none", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                session.createConsumer(session.createQueue(prefix + "none"), "colour = AND");
                return "taken";
            }
        });
    }
}
