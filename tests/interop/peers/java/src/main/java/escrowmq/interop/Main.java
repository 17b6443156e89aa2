package escrowmq.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Stock clients, commanded by JSON lines.
 *
 * <p>Each line on standard input is a command with an id; each line on standard output is the answer
 * to one, or an event without a request.  Commands run side by side, since one may hang on
 * purpose.  When the input ends, everything does.
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws IOException {
        Wire wire = new Wire(System.out);
        // Whatever a client prints must not end up between our lines.
        System.setOut(System.err);
        Commands commands = new Commands(wire);
        ExecutorService running = Executors.newCachedThreadPool();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        wire.ready(System.getProperty("rocketmq.client.version", "?"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Request request = Request.parse(line);
            running.execute(() -> wire.answer(request, commands));
        }
        // A hanging listener would hold up an orderly end.
        Runtime.getRuntime().halt(0);
    }
}
