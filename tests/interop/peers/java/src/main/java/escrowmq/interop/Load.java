package escrowmq.interop;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions from many threads of one producer, and a consumer of them in the same process, so that
 * one clock tells when each was sent, committed and received.
 *
 * <p>Each message carries its number in its body; all instants are kept by number and read when all is
 * over.  What was sent while warming up counts for nothing but loss and doubling.
 */
final class Load {
    /** Transactions of one run; past it the threads stop sending, and the figures say so. */
    private static final int TRANSACTIONS_MAX = 1 << 21;

    private static final Map<String, Double> SHARES =
            new TreeMap<>(Map.of("p50", 0.5, "p90", 0.9, "p99", 0.99));

    private final Request request;
    private final String topic;
    private final int bodyBytes;
    private final AtomicInteger numbers = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicInteger checks = new AtomicInteger();
    private final AtomicInteger doubles = new AtomicInteger();
    private final AtomicInteger committed = new AtomicInteger();
    private final AtomicInteger received = new AtomicInteger();
    private final AtomicLongArray sentAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray decidedAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray returnedAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private final AtomicLongArray receivedAt = new AtomicLongArray(TRANSACTIONS_MAX);
    private volatile boolean stopping;

    Load(Request request) {
        this.request = request;
        topic = request.text("topic");
        bodyBytes = Math.max(Integer.BYTES, request.count("body_bytes"));
    }

    Map<String, Object> run() throws Exception {
        DefaultMQPushConsumer consumer = consumer();
        TransactionMQProducer producer = producer();
        List<Thread> threads = new ArrayList<>();
        for (int thread = 0; thread < request.count("threads"); thread++) {
            threads.add(new Thread(() -> sendUntilStopped(producer)));
        }
        threads.forEach(Thread::start);
        TimeUnit.MILLISECONDS.sleep(request.number("warm_up_ms"));
        long from = System.nanoTime();
        TimeUnit.MILLISECONDS.sleep(request.number("measure_ms"));
        long until = System.nanoTime();
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
        drain(TimeUnit.MILLISECONDS.toNanos(request.number("drain_ms")));
        producer.shutdown();
        consumer.shutdown();
        return figures(from, until);
    }

    private TransactionMQProducer producer() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(request.text("group"));
        producer.setNamesrvAddr(request.text("name_server"));
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                decidedAt.set((int) number, System.nanoTime());
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.text("group") + "-c");
        consumer.setNamesrvAddr(request.text("name_server"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                int number = ByteBuffer.wrap(message.getBody()).getInt();
                if (receivedAt.compareAndSet(number, 0, now)) {
                    received.incrementAndGet();
                } else {
                    doubles.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private void sendUntilStopped(TransactionMQProducer producer) {
        while (!stopping) {
            int number = numbers.getAndIncrement();
            if (number >= TRANSACTIONS_MAX) {
                return;
            }
            byte[] body = new byte[bodyBytes];
            Arrays.fill(body, (byte) 'x');
            ByteBuffer.wrap(body).putInt(number);
            Message message = new Message(topic, "load", "load-" + number, body);
            sentAt.set(number, System.nanoTime());
            try {
                if (producer.sendMessageInTransaction(message, number).getSendStatus()
                        == SendStatus.SEND_OK) {
                    returnedAt.set(number, System.nanoTime());
                    committed.incrementAndGet();
                } else {
                    failures.incrementAndGet();
                }
            } catch (Exception problem) {
                failures.incrementAndGet();
            }
        }
    }

    private void drain(long nanos) throws InterruptedException {
        long deadline = System.nanoTime() + nanos;
        while (received.get() < committed.get() && System.nanoTime() < deadline) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    private Map<String, Object> figures(long from, long until) {
        int count = Math.min(numbers.get(), TRANSACTIONS_MAX);
        long[] roundTrips = new long[count];
        long[] deliveries = new long[count];
        int returned = 0;
        int delivered = 0;
        int lost = 0;
        int receivedInTime = 0;
        for (int number = 0; number < count; number++) {
            long end = returnedAt.get(number);
            long seen = receivedAt.get(number);
            receivedInTime += within(seen, from, until) ? 1 : 0;
            if (within(end, from, until)) {
                roundTrips[returned++] = end - sentAt.get(number);
                if (seen != 0) {
                    deliveries[delivered++] = seen - decidedAt.get(number);
                }
            }
            lost += end != 0 && seen == 0 ? 1 : 0;
        }
        double seconds = (until - from) / 1e9;
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("seconds", seconds);
        facts.put("transactions", returned);
        facts.put("transactions_with_warm_up", committed.get());
        facts.put("transactions_per_second", returned / seconds);
        facts.put("received_per_second", receivedInTime / seconds);
        facts.put("send_ms", percentiles(roundTrips, returned));
        facts.put("delivery_ms", percentiles(deliveries, delivered));
        facts.put("failed", failures.get());
        facts.put("checks", checks.get());
        facts.put("doubled", doubles.get());
        facts.put("not_received", lost);
        facts.put("full", numbers.get() >= TRANSACTIONS_MAX);
        return facts;
    }

    private static boolean within(long instant, long from, long until) {
        return instant != 0 && instant >= from && instant < until;
    }

    private static Map<String, Object> percentiles(long[] nanos, int count) {
        long[] sorted = Arrays.copyOf(nanos, count);
        Arrays.sort(sorted);
        Map<String, Object> facts = new LinkedHashMap<>();
        SHARES.forEach((name, share) ->
                facts.put(name, count == 0 ? null : sorted[(int) (share * (count - 1))] / 1e6));
        facts.put("max", count == 0 ? null : sorted[count - 1] / 1e6);
        return facts;
    }
}
