import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What programs of tests have in common: each case prints one line, its name, a tab, and what came of it. */
abstract class Cases {
    /** How long something may take to come that must come, in ms. */
    static final long PATIENCE = 30_000;

    /** Of the broker: amqp://host:port. */
    static String url;
    /** Stands before every name that a case makes up, so that runs do not meet. */
    static String prefix;

    interface Body {
        Object run() throws Exception;
    }

    static void begin(String[] arguments) {
        url = arguments[0];
        prefix = arguments[1];
    }

    static void run(String name, Body body) {
        String result;
        try {
            result = String.valueOf(body.run());
        } catch (Exception error) {
            result = error.getClass().getSimpleName();
        }
        System.out.println(name + "\t" + result);
    }

    /** A started connection; without a client id the client makes one up. */
    static Connection connect(String clientId) throws JMSException {
        Connection connection = new JmsConnectionFactory("guest", "guest", url).createConnection();
        if (clientId != null) {
            connection.setClientID(prefix + clientId);
        }
        connection.start();
        return connection;
    }

    static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    /** The text of the next message, which must come. */
    static String next(MessageConsumer consumer) throws JMSException {
        return text(consumer.receive(PATIENCE));
    }

    /** The text of a message that is there now, as the broker says; "-" if there is none. */
    static String now(MessageConsumer consumer) throws JMSException {
        return text(consumer.receiveNoWait());
    }

    private static String text(Message message) throws JMSException {
        return message == null ? "-" : ((TextMessage) message).getText();
    }
}
