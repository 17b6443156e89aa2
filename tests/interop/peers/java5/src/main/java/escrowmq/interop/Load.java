package escrowmq.interop;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Transactions from many threads of one producer; then a simple consumer receives and acknowledges
 * all that were committed.
 *
 * <p>Each message carries its number in its body; all instants are kept by number and read when all
 * is over. What was sent while warming up counts for nothing but loss and doubling.
 */
final class Load {
    /** Transactions of one run; past it the threads stop sending, and the figures say so. */
    private static final int TRANSACTIONS_MAX = 1 << 20;

    private static final int RECEIVERS = 16;
    private static final int RECEIVED_MAX = 32;
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private static final Duration AWAIT = Duration.ofSeconds(2);
    private static final Map<String, Double> SHARES =
            new TreeMap<>(Map.of("p50", 0.5, "p90", 0.9, "p99", 0.99));

    private final ClientServiceProvider provider;
    private final JsonObject request;
    private final String topic;
    private final int bodyBytes;
    private final AtomicInteger numbers = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicInteger checks = new AtomicInteger();
    private final AtomicInteger committed = new AtomicInteger();
    private final AtomicInteger receiveFailures = new AtomicInteger();
    private final AtomicInteger doubles = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicLongArray begunAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray sentAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray committedAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray receivedAt = new AtomicLongArray(TRANSACTIONS_MAX);
    /** Instants of acknowledgements in their order. */
    private final AtomicLongArray acknowledgedAt = new AtomicLongArray(TRANSACTIONS_MAX);

    private volatile boolean stopping;
    private volatile String firstFailure;

    Load(ClientServiceProvider provider, JsonObject request) {
        this.provider = provider;
        this.request = request;
        topic = request.get("topic").getAsString();
        bodyBytes = Math.max(Integer.BYTES, request.get("body_bytes").getAsInt());
    }

    Map<String, Object> run() throws ClientException, IOException, InterruptedException {
        long from;
        long until;
        try (Producer producer = producer()) {
            List<Thread> threads =
                    started(request.get("threads").getAsInt(), () -> sendUntilStopped(producer));
            TimeUnit.MILLISECONDS.sleep(request.get("warm_up_ms").getAsLong());
            from = System.nanoTime();
            TimeUnit.MILLISECONDS.sleep(request.get("measure_ms").getAsLong());
            until = System.nanoTime();
            stopping = true;
            joined(threads);
        }
        if (request.get("receives").getAsBoolean()) {
            try (SimpleConsumer consumer = consumer()) {
                long deadline =
                        System.nanoTime()
                                + TimeUnit.MILLISECONDS.toNanos(
                                        request.get("drain_ms").getAsLong());
                joined(started(RECEIVERS, () -> receiveUntil(consumer, deadline)));
            }
        }
        return figures(from, until);
    }

    private Producer producer() throws ClientException {
        return provider.newProducerBuilder()
                .setClientConfiguration(configuration())
                .setTopics(topic)
                .setTransactionChecker(
                        message -> {
                            checks.incrementAndGet();
                            return TransactionResolution.COMMIT;
                        })
                .build();
    }

    private SimpleConsumer consumer() throws ClientException {
        return provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration())
                .setConsumerGroup(request.get("group").getAsString())
                .setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .build();
    }

    private ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder()
                .setEndpoints(request.get("endpoints").getAsString())
                .enableSsl(request.get("tls").getAsBoolean())
                .setRequestTimeout(Duration.ofSeconds(10))
                .build();
    }

    private void sendUntilStopped(Producer producer) {
        while (!stopping) {
            int number = numbers.getAndIncrement();
            if (number >= TRANSACTIONS_MAX) {
                return;
            }
            byte[] body = new byte[bodyBytes];
            Arrays.fill(body, (byte) 'x');
            ByteBuffer.wrap(body).putInt(number);
            Message message =
                    provider.newMessageBuilder()
                            .setTopic(topic)
                            .setTag("load")
                            .setKeys("load-" + number)
                            .setBody(body)
                            .build();
            begunAt.set(number, System.nanoTime());
            try {
                Transaction transaction = producer.beginTransaction();
                SendReceipt unused = producer.send(message, transaction);
                sentAt.set(number, System.nanoTime());
                transaction.commit();
                committedAt.set(number, System.nanoTime());
                committed.incrementAndGet();
            } catch (Exception problem) {
                failures.incrementAndGet();
                firstFailure = firstFailure == null ? String.valueOf(problem) : firstFailure;
            }
        }
    }

    private void receiveUntil(SimpleConsumer consumer, long deadline) {
        while (acknowledged.get() < committed.get() && System.nanoTime() < deadline) {
            try {
                List<MessageView> messages = consumer.receive(RECEIVED_MAX, INVISIBLE);
                long now = System.nanoTime();
                List<CompletableFuture<Void>> acknowledgements = new ArrayList<>();
                for (MessageView message : messages) {
                    if (!receivedAt.compareAndSet(message.getBody().getInt(), 0, now)) {
                        doubles.incrementAndGet();
                    }
                    acknowledgements.add(
                            consumer.ackAsync(message).thenRun(this::noteAcknowledgement));
                }
                CompletableFuture.allOf(acknowledgements.toArray(CompletableFuture[]::new)).join();
            } catch (Exception problem) {
                receiveFailures.incrementAndGet();
                firstFailure = firstFailure == null ? String.valueOf(problem) : firstFailure;
            }
        }
    }

    private void noteAcknowledgement() {
        acknowledgedAt.set(acknowledged.getAndIncrement(), System.nanoTime());
    }

    private Map<String, Object> figures(long from, long until) {
        int count = Math.min(numbers.get(), TRANSACTIONS_MAX);
        long[] sends = new long[count];
        long[] transactions = new long[count];
        int measured = 0;
        int lost = 0;
        for (int number = 0; number < count; number++) {
            long end = committedAt.get(number);
            if (end != 0 && end >= from && end < until) {
                sends[measured] = sentAt.get(number) - begunAt.get(number);
                transactions[measured++] = end - begunAt.get(number);
            }
            lost += end != 0 && receivedAt.get(number) == 0 ? 1 : 0;
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("transactions_per_second", measured / ((until - from) / 1e9));
        facts.put("transactions_with_warm_up", committed.get());
        facts.put("send_ms", percentiles(sends, measured));
        facts.put("transaction_ms", percentiles(transactions, measured));
        facts.put("received_per_second", receivedPerSecond());
        facts.put("failed", failures.get());
        facts.put("receives_failed", receiveFailures.get());
        facts.put("checks", checks.get());
        facts.put("doubled", doubles.get());
        facts.put("not_received", request.get("receives").getAsBoolean() ? lost : 0);
        facts.put("full", numbers.get() >= TRANSACTIONS_MAX);
        facts.put("first_failure", firstFailure);
        return facts;
    }

    /** The rate without the first tenth, while the consumer warms up, and the last one. */
    private double receivedPerSecond() {
        int tenth = acknowledged.get() / 10;
        if (tenth == 0) {
            return 0;
        }
        long nanos = acknowledgedAt.get(9 * tenth) - acknowledgedAt.get(tenth);
        return 8 * tenth / (nanos / 1e9);
    }

    private static List<Thread> started(int count, Runnable work) {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Thread thread = new Thread(work);
            thread.start();
            threads.add(thread);
        }
        return threads;
    }

    private static void joined(List<Thread> threads) throws InterruptedException {
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static Map<String, Object> percentiles(long[] nanos, int count) {
        long[] sorted = Arrays.copyOf(nanos, count);
        Arrays.sort(sorted);
        Map<String, Object> facts = new LinkedHashMap<>();
        SHARES.forEach(
                (name, share) ->
                        facts.put(
                                name,
                                count == 0 ? null : sorted[(int) (share * (count - 1))] / 1e6));
        facts.put("max", count == 0 ? null : sorted[count - 1] / 1e6);
        return facts;
    }
}
