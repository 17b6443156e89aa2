package escrowmq.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** A transaction checker that answers as it was told, key by key; the last answer is repeated. */
final class Script implements TransactionChecker {
    private final String client;
    private final Wire wire;
    private final Map<String, List<String>> answers = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();

    Script(String client, Wire wire) {
        this.client = client;
        this.wire = wire;
    }

    void tell(String key, List<String> checks) {
        answers.put(key, List.copyOf(checks));
    }

    @Override
    public TransactionResolution check(MessageView message) {
        String key = message.getKeys().iterator().next();
        int number = asked.computeIfAbsent(key, unused -> new AtomicInteger()).incrementAndGet();
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("client", client);
        facts.put("number", number);
        facts.put("view", Messages.view(message));
        wire.event("asked", facts);
        List<String> told = answers.getOrDefault(key, List.of());
        String answer = told.isEmpty() ? "unknown" : told.get(Math.min(number, told.size()) - 1);
        return TransactionResolution.valueOf(answer.toUpperCase());
    }
}
