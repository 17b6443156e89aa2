package escrowmq.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** The way out: answers and events, one JSON object per line. */
final class Wire {
    private final Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private final PrintStream out;

    Wire(PrintStream out) {
        this.out = new PrintStream(out, false, StandardCharsets.UTF_8);
    }

    void ready(String version) {
        event("ready", Map.of("version", version, "pid", ProcessHandle.current().pid()));
    }

    void event(String name, Map<String, ?> facts) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", name);
        line.putAll(facts);
        write(line);
    }

    void answer(Request request, Commands commands) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", request.id());
        try {
            line.put("ok", commands.run(request));
        } catch (Throwable problem) {
            line.put("error", error(problem));
        }
        write(line);
    }

    private static Map<String, Object> error(Throwable problem) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("type", problem.getClass().getSimpleName());
        facts.put("message", String.valueOf(problem.getMessage()));
        facts.put("code", Versions.responseCode(problem));
        return facts;
    }

    private synchronized void write(Map<String, ?> line) {
        out.println(gson.toJson(line));
        out.flush();
    }
}
