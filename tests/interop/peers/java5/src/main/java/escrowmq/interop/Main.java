package escrowmq.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.java.misc.MetadataUtils;

/**
 * Official 5.x clients, commanded by JSON lines: a command with an id in each line of the input, its
 * answer or an event in each line of the output. Commands run side by side. The process ends with
 * its input.
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException {
        Wire wire = new Wire(System.out);
        // A client's own output must not end up between our lines.
        System.setOut(System.err);
        Driver driver = new Driver(wire);
        ExecutorService running = Executors.newCachedThreadPool();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        wire.event("ready", Map.of("version", MetadataUtils.getVersion()));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            running.execute(() -> wire.answer(command, driver));
        }
        // A client that waits for messages would hold up an orderly end.
        Runtime.getRuntime().halt(0);
    }
}
