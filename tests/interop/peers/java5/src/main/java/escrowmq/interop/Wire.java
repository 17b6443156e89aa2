package escrowmq.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The way out: answers and events, one JSON object per line. */
final class Wire {
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");

    private final Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private final PrintStream out;

    Wire(PrintStream out) {
        this.out = new PrintStream(out, false, StandardCharsets.UTF_8);
    }

    void event(String name, Map<String, ?> facts) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", name);
        line.putAll(facts);
        write(line);
    }

    void answer(JsonObject command, Driver driver) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", command.get("id").getAsLong());
        try {
            line.put("ok", driver.run(command));
        } catch (Throwable problem) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("type", problem.getClass().getSimpleName());
            facts.put("message", String.valueOf(problem.getMessage()));
            facts.put("code", code(problem));
            line.put("error", facts);
        }
        write(line);
    }

    private static Integer code(Throwable problem) {
        // The client tells the code only in its text.
        Matcher found = CODE.matcher(String.valueOf(problem.getMessage()));
        return found.find() ? Integer.valueOf(found.group(1)) : null;
    }

    private synchronized void write(Map<String, ?> line) {
        out.println(gson.toJson(line));
        out.flush();
    }
}
