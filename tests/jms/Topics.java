import jakarta.jms.Connection;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.Topic;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Topics and subscriptions, as programs for Artemis or Qpid use them. */
final class Topics extends Cases {
    static Topic topic(Session session, String name) throws Exception {
        return session.createTopic(prefix + name);
    }

    static void send(Session session, Topic topic, String text) throws Exception {
        MessageProducer producer = session.createProducer(topic);
        producer.send(session.createTextMessage(text));
        producer.close();
    }

    public static void main(String[] arguments) {
        begin(arguments);
        run("each subscriber gets a copy", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Topic topic = topic(session, "a.b");
                send(session, topic, "nobody listens");
                MessageConsumer one = session.createConsumer(topic);
                MessageConsumer other = session.createConsumer(topic);
                send(session, topic, "1");
                return next(one) + next(other) + now(one) + now(other);
            }
        });
        run("a queue and a topic of one name", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Topic topic = topic(session, "both");
                Queue queue = session.createQueue(prefix + "both");
                MessageConsumer ofTopic = session.createConsumer(topic);
                // A name without a prefix is the queue's only if the queue is there when the message comes.
                MessageConsumer ofQueue = session.createConsumer(queue);
                MessageProducer anonymous = session.createProducer(null);
                anonymous.send(topic, session.createTextMessage("topic"));
                anonymous.send(queue, session.createTextMessage("queue"));
                return next(ofTopic) + " " + next(ofQueue) + " " + now(ofTopic) + now(ofQueue);
            }
        });
        run("destinations of a message come back", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Topic topic = topic(session, "back");
                MessageConsumer consumer = session.createConsumer(topic);
                Message message = session.createTextMessage("x");
                message.setJMSReplyTo(topic(session, "replies"));
                session.createProducer(topic).send(message);
                Message came = consumer.receive(PATIENCE);
                Topic replies = (Topic) came.getJMSReplyTo();
                return came.getJMSDestination().equals(topic) + " " + replies.equals(topic(session, "replies"));
            }
        });
        run("a durable subscription", () -> {
            try (Connection connection = connect("durable")) {
                Session session = session(connection);
                Topic topic = topic(session, "d");
                session.createDurableConsumer(topic, "sub").close();
                send(session, topic, "kept");
                MessageConsumer consumer = session.createDurableConsumer(topic, "sub");
                send(session, topic, "new");
                String got = next(consumer) + " " + next(consumer);
                consumer.close();
                session.unsubscribe("sub");
                send(session, topic, "lost");
                consumer = session.createDurableConsumer(topic, "sub");
                got += " " + now(consumer);
                consumer.close();
                session.unsubscribe("sub");
                return got;
            }
        });
        run("a durable subscription over connections", () -> {
            try (Connection connection = connect("over")) {
                Session session = session(connection);
                session.createDurableConsumer(topic(session, "over"), "sub");
            }
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                send(session, topic(session, "over"), "kept");
            }
            try (Connection connection = connect("over")) {
                Session session = session(connection);
                MessageConsumer consumer = session.createDurableConsumer(topic(session, "over"), "sub");
                String got = next(consumer);
                consumer.close();
                session.unsubscribe("sub");
                return got;
            }
        });
        run("another topic under the name", () -> {
            try (Connection connection = connect("changed")) {
                Session session = session(connection);
                session.createDurableConsumer(topic(session, "old"), "sub").close();
                send(session, topic(session, "old"), "old");
                MessageConsumer consumer = session.createDurableConsumer(topic(session, "new"), "sub");
                send(session, topic(session, "new"), "new");
                String got = next(consumer) + " " + now(consumer);
                consumer.close();
                session.unsubscribe("sub");
                return got;
            }
        });
        run("another selector under the name", () -> {
            try (Connection connection = connect("selects")) {
                Session session = session(connection);
                Topic topic = topic(session, "selects");
                session.createDurableConsumer(topic, "sub").close();
                send(session, topic, "old");
                MessageConsumer consumer = session.createDurableConsumer(topic, "sub", "n = 1", false);
                send(session, topic, "not selected");
                String got = now(consumer);
                consumer.close();
                session.unsubscribe("sub");
                return got;
            }
        });
        run("unsubscribe what is not there", () -> {
            try (Connection connection = connect("nobody")) {
                session(connection).unsubscribe("nothing");
                return "done";
            }
        });
        run("a client id is taken", () -> {
            try (Connection one = connect("taken"); Connection other = connect("taken")) {
                return "both";
            }
        });
        run("a virtual host that is not there", () -> {
            String there = url + "?amqp.vhost=vhost:none";
            try (Connection one = new JmsConnectionFactory("guest", "guest", there).createConnection()) {
                one.start();
                return "open";
            } catch (JMSException error) {
                return error.getMessage();
            }
        });
        run("a client id is free again", () -> {
            connect("free").close();
            connect("free").close();
            return "both";
        });
        run("a shared subscription", () -> {
            try (Connection one = connect(null); Connection other = connect(null)) {
                CountDownLatch came = new CountDownLatch(20);
                Session session = session(one);
                Topic topic = topic(session, "shared");
                for (Session each : new Session[] {session(one), session(one), session(other)}) {
                    each.createSharedConsumer(topic, "sub").setMessageListener(message -> came.countDown());
                }
                MessageConsumer alone = session.createConsumer(topic);
                for (int number = 0; number < 20; number++) {
                    send(session, topic, "" + number);
                }
                boolean all = came.await(PATIENCE, TimeUnit.MILLISECONDS);
                int copies = 0;
                while (!now(alone).equals("-")) {
                    copies++;
                }
                return all + " " + copies;
            }
        });
        for (String id : new String[] {"shares", null}) {
            run("a shared durable subscription " + (id == null ? "of all" : "of a client id"), () -> {
                try (Connection connection = connect(id)) {
                    Session session = session(connection);
                    String name = prefix + "sub";
                    Topic topic = topic(session, "kept." + id);
                    MessageConsumer one = session.createSharedDurableConsumer(topic, name);
                    MessageConsumer other = session.createSharedDurableConsumer(topic, name);
                    one.close();
                    other.close();
                    send(session, topic, "kept");
                    one = session.createSharedDurableConsumer(topic, name);
                    String got = next(one);
                    one.close();
                    session.unsubscribe(name);
                    return got;
                }
            });
        }
        run("a temporary topic", () -> {
            try (Connection one = connect(null); Connection other = connect(null)) {
                Session mine = session(one);
                Session theirs = session(other);
                TemporaryTopic topic = mine.createTemporaryTopic();
                MessageConsumer consumer = mine.createConsumer(topic);
                Queue queue = mine.createQueue(prefix + "requests");
                Message request = mine.createTextMessage("request");
                request.setJMSReplyTo(topic);
                mine.createProducer(queue).send(request);
                Message came = theirs.createConsumer(queue).receive(PATIENCE);
                theirs.createProducer(null).send(came.getJMSReplyTo(), theirs.createTextMessage("reply"));
                String got = next(consumer);
                consumer.close();
                topic.delete();
                return got;
            }
        });
        run("a temporary topic that was deleted", () -> {
            try (Connection one = connect(null); Connection other = connect(null)) {
                TemporaryTopic topic = session(one).createTemporaryTopic();
                topic.delete();
                Session theirs = session(other);
                theirs.createProducer(theirs.createTopic(topic.getTopicName()));
                return "sent";
            }
        });
        run("a selector", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                Topic topic = topic(session, "selected");
                MessageConsumer consumer = session.createConsumer(topic, "n > 1 AND JMSType = 'kind'");
                MessageProducer producer = session.createProducer(topic);
                for (int n = 1; n <= 2; n++) {
                    Message message = session.createTextMessage("n=" + n);
                    message.setIntProperty("n", n);
                    message.setJMSType("kind");
                    producer.send(message);
                }
                return next(consumer) + " " + now(consumer);
            }
        });
        for (String id : new String[] {null, "local"}) {
            run("no local, " + (id == null ? "volatile" : "durable"), () -> {
                try (Connection one = connect(id); Connection other = connect(null)) {
                    Session mine = session(one);
                    Session theirs = session(other);
                    Topic topic = topic(mine, "local." + id);
                    MessageConsumer consumer = id == null
                        ? mine.createConsumer(topic, null, true)
                        : mine.createDurableConsumer(topic, "sub", null, true);
                    send(mine, topic, "mine");
                    send(theirs, topic, "theirs");
                    String got = next(consumer) + " " + now(consumer);
                    consumer.close();
                    if (id != null) {
                        mine.unsubscribe("sub");
                    }
                    return got;
                }
            });
        }
        run("words of a topic's name may be wild", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                MessageConsumer one = session.createConsumer(topic(session, "wild.*"));
                MessageConsumer all = session.createConsumer(topic(session, "wild.#"));
                send(session, topic(session, "wild.a"), "a");
                send(session, topic(session, "wild.a.b"), "b");
                return next(one) + now(one) + " " + next(all) + next(all) + now(all);
            }
        });
        run("addresses as programs for RabbitMQ have them", () -> {
            try (Connection connection = connect(null)) {
                Session session = session(connection);
                MessageConsumer ofTopic = session.createConsumer(topic(session, "exchanged"));
                send(session, session.createTopic("/exchanges/amq.topic/" + prefix + "exchanged"), "x");
                Queue declared = session.createQueue(prefix + "declared");
                MessageConsumer ofQueue = session.createConsumer(declared);
                Queue addressed = session.createQueue("/queues/" + prefix + "declared");
                session.createProducer(addressed).send(session.createTextMessage("q"));
                return next(ofTopic) + " " + next(ofQueue);
            }
        });
        run("the program of docs/jms.md", () -> {
            try (JMSContext context = new JmsConnectionFactory(url).createContext("guest", "guest")) {
                context.setClientID(prefix + "billing");
                Topic topic = context.createTopic(prefix + "orders.eu");
                JMSConsumer orders = context.createDurableConsumer(topic, "invoices");
                context.createProducer().send(topic, "order 1");
                String got = orders.receiveBody(String.class, PATIENCE);
                orders.close();
                context.unsubscribe("invoices");
                return got;
            }
        });
    }
}
