package escrowmq.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transaction listener that does as it was told, key by key.
 *
 * <p>An answer is commit, rollback, unknown, null, throw, {@code sleep:<ms>:<answer>}, {@code
 * executed:<answer>}, which is unknown as long as the local transaction has not run, or hang: until
 * somebody releases the key with the answer to give.
 */
final class Script implements TransactionListener {
    private static final String UNSCRIPTED = "unknown";

    private final String client;
    private final Wire wire;
    private final Map<String, String> locals = new ConcurrentHashMap<>();
    private final Map<String, List<String>> checks = new ConcurrentHashMap<>();
    private final Map<String, AtomicInteger> checked = new ConcurrentHashMap<>();
    private final Set<String> executed = ConcurrentHashMap.newKeySet();
    private final Map<String, CompletableFuture<String>> hanging = new ConcurrentHashMap<>();

    Script(String client, Wire wire) {
        this.client = client;
        this.wire = wire;
    }

    void tell(String key, String local, List<String> answers) {
        locals.put(key, local);
        checks.put(key, List.copyOf(answers));
    }

    void release(String key, String answer) {
        hanging.computeIfAbsent(key, unused -> new CompletableFuture<>()).complete(answer);
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String key = message.getKeys();
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("client", client);
        facts.put("key", key);
        facts.put("transaction_id", message.getTransactionId());
        wire.event("local", facts);
        executed.add(key);
        return act(key, locals.getOrDefault(key, UNSCRIPTED));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String key = message.getKeys();
        int number =
                checked.computeIfAbsent(key, unused -> new AtomicInteger()).incrementAndGet();
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("client", client);
        facts.put("key", key);
        facts.put("number", number);
        facts.put("transaction_id", message.getTransactionId());
        facts.put("message", Messages.write(message));
        wire.event("check", facts);
        List<String> answers = checks.getOrDefault(key, List.of());
        // The last answer is given again and again.
        String answer =
                answers.isEmpty() ? UNSCRIPTED : answers.get(Math.min(number, answers.size()) - 1);
        return act(key, answer);
    }

    private LocalTransactionState act(String key, String answer) {
        if (answer.startsWith("sleep:")) {
            String[] parts = answer.split(":", 3);
            pause(Long.parseLong(parts[1]));
            return act(key, parts[2]);
        }
        if (answer.startsWith("executed:")) {
            return act(key, executed.contains(key) ? answer.split(":", 2)[1] : "unknown");
        }
        return switch (answer) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown" -> LocalTransactionState.UNKNOW;
            case "null" -> null;
            case "throw" -> throw new IllegalStateException("thrown as scripted");
            case "hang" ->
                act(key, hanging.computeIfAbsent(key, unused -> new CompletableFuture<>()).join());
            default -> throw new IllegalArgumentException("no such answer: " + answer);
        };
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
