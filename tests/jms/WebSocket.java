import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What must work over any transport: messages in order, small and larger than a frame, and a refused login. */
final class WebSocket extends Cases {
    static final int COUNT = 200;
    static final int LARGE = 400_000;

    public static void main(String[] arguments) {
        begin(arguments);
        run("messages come in order", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Queue queue = session.createQueue(prefix + "queue");
                MessageConsumer consumer = session.createConsumer(queue);
                MessageProducer producer = session.createProducer(queue);
                for (int sent = 0; sent < COUNT; sent++) {
                    BytesMessage message = session.createBytesMessage();
                    message.writeBytes(new byte[sent == 7 ? LARGE : 10]);
                    message.setIntProperty("n", sent);
                    producer.send(message);
                }
                int right = 0;
                for (int got = 0; got < COUNT; got++) {
                    Message message = consumer.receive(PATIENCE);
                    long size = ((BytesMessage) message).getBodyLength();
                    if (message.getIntProperty("n") == got && size == (got == 7 ? LARGE : 10)) {
                        right++;
                    }
                }
                return right;
            }
        });
        run("a wrong password", () -> new JmsConnectionFactory("guest", "wrong", url).createConnection());
    }
}
