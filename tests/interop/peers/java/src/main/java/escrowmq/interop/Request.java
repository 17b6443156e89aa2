package escrowmq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** One command: typed looks into its JSON object. */
record Request(JsonObject fields) {
    static Request parse(String line) {
        return new Request(JsonParser.parseString(line).getAsJsonObject());
    }

    long id() {
        return number("id");
    }

    boolean has(String name) {
        return fields.has(name) && !fields.get(name).isJsonNull();
    }

    String text(String name) {
        if (!has(name)) {
            throw new IllegalArgumentException("the command lacks " + name);
        }
        return fields.get(name).getAsString();
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    long number(String name) {
        return Long.parseLong(text(name));
    }

    long number(String name, long otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    int count(String name) {
        return Math.toIntExact(number(name));
    }

    boolean flag(String name) {
        return has(name) && fields.get(name).getAsBoolean();
    }

    Request part(String name) {
        return new Request(fields.getAsJsonObject(name));
    }

    List<Request> parts(String name) {
        List<Request> found = new ArrayList<>();
        for (JsonElement element : fields.getAsJsonArray(name)) {
            found.add(new Request(element.getAsJsonObject()));
        }
        return found;
    }

    List<String> texts(String name) {
        List<String> found = new ArrayList<>();
        if (has(name)) {
            fields.getAsJsonArray(name).forEach(element -> found.add(element.getAsString()));
        }
        return found;
    }

    Map<String, String> table(String name) {
        Map<String, String> found = new LinkedHashMap<>();
        if (has(name)) {
            part(name).fields.entrySet()
                    .forEach(entry -> found.put(entry.getKey(), entry.getValue().getAsString()));
        }
        return found;
    }
}
