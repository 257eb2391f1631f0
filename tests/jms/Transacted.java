import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;

/** Sessions with transactions. */
final class Transacted extends Cases {
    static Session transacted(Connection connection) throws Exception {
        return connection.createSession(true, Session.SESSION_TRANSACTED);
    }

    static void send(MessageProducer producer, Session session, int first, int beyond) throws Exception {
        for (int number = first; number < beyond; number++) {
            producer.send(session.createTextMessage(String.valueOf(number)));
        }
    }

    static String all(MessageConsumer consumer) throws Exception {
        StringBuilder found = new StringBuilder();
        for (String text = now(consumer); !text.equals("-"); text = now(consumer)) {
            found.append(text);
        }
        return found.length() == 0 ? "-" : found.toString();
    }

    /** What another connection gets of a queue at this moment. */
    static String seen(Queue queue) throws Exception {
        try (Connection connection = connect(null)) {
            return all(session(connection).createConsumer(queue));
        }
    }

    public static void main(String[] arguments) {
        begin(arguments);
        run("sent and committed", () -> {
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                Queue queue = session.createQueue(prefix + "commit");
                MessageProducer producer = session.createProducer(queue);
                send(producer, session, 0, 3);
                String before = seen(queue);
                session.commit();
                return before + " " + seen(queue);
            }
        });
        run("sent and rolled back, then committed", () -> {
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                Queue queue = session.createQueue(prefix + "rollback");
                MessageProducer producer = session.createProducer(queue);
                send(producer, session, 0, 3);
                session.rollback();
                send(producer, session, 3, 6);
                session.commit();
                return seen(queue);
            }
        });
        run("received and rolled back", () -> {
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                Queue queue = session.createQueue(prefix + "receive");
                send(session.createProducer(queue), session, 0, 3);
                session.commit();
                MessageConsumer consumer = session.createConsumer(queue);
                String first = next(consumer);
                session.rollback();
                Message again = consumer.receive(PATIENCE);
                session.commit();
                String rest = next(consumer) + next(consumer);
                session.commit();
                return first + " " + ((TextMessage) again).getText() + again.getJMSRedelivered()
                    + again.getIntProperty("JMSXDeliveryCount") + " " + rest + " " + seen(queue);
            }
        });
        run("moved from one queue to another, or not", () -> {
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                Queue from = session.createQueue(prefix + "from");
                Queue to = session.createQueue(prefix + "to");
                send(session.createProducer(from), session, 0, 4);
                session.commit();
                MessageConsumer consumer = session.createConsumer(from);
                MessageProducer producer = session.createProducer(to);
                producer.send(session.createTextMessage(next(consumer)));
                producer.send(session.createTextMessage(next(consumer)));
                session.commit();
                producer.send(session.createTextMessage(next(consumer)));
                session.close();
                return seen(to) + " " + seen(from);
            }
        });
        run("a connection that ends rolls back", () -> {
            String name = prefix + "end";
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                send(session.createProducer(session.createQueue(name)), session, 0, 3);
            }
            try (Connection connection = connect(null)) {
                return all(session(connection).createConsumer(session(connection).createQueue(name)));
            }
        });
        run("a thousand in one", () -> {
            try (Connection connection = connect(null)) {
                Session session = transacted(connection);
                Queue queue = session.createQueue(prefix + "many");
                send(session.createProducer(queue), session, 0, 1000);
                session.commit();
                MessageConsumer consumer = session.createConsumer(queue);
                int count = 0;
                for (int number = 0; number < 1000; number++) {
                    count += next(consumer).equals(String.valueOf(number)) ? 1 : 0;
                }
                session.commit();
                return count + " " + seen(queue);
            }
        });
    }
}
