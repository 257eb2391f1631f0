// A broker for tests in Java: java examples/ready_file/BrokerExample.java

import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Runs a broker from the constructor until {@link #close}; for a field of a test class. */
public class BrokerExample implements AutoCloseable {
    private final Process process;
    public final int port;

    public BrokerExample() throws Exception {
        Path file = Files.createTempDirectory("broker").resolve("ready.json");
        process = new ProcessBuilder(
                "amqp10broker", "serve", "--port", "0", "--ready-file", file.toString(), "--log-level", "warning")
            .inheritIO().start();
        while (!Files.exists(file)) {
            if (process.waitFor(50, TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException("the broker did not start");
            }
        }
        Matcher found = Pattern.compile("\"port\": (\\d+)").matcher(Files.readString(file));
        if (!found.find()) {
            throw new IllegalStateException("the ready file has no port");
        }
        port = Integer.parseInt(found.group(1));
    }

    @Override
    public void close() throws Exception {
        process.destroy();
        process.waitFor();
    }

    public static void main(String[] arguments) throws Exception {
        try (BrokerExample broker = new BrokerExample(); Socket socket = new Socket("127.0.0.1", broker.port)) {
            socket.getOutputStream().write(new byte[] {'A', 'M', 'Q', 'P', 3, 1, 0, 0});
            byte[] header = socket.getInputStream().readNBytes(4);
            System.out.println("the broker answered " + new String(header, "US-ASCII"));
        }
    }
}
