package escrowmq.interop;

import com.google.gson.JsonObject;
import java.io.Closeable;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;

/** The clients, and a method for each command. */
final class Driver {
    private static final Map<String, Object> DONE = Map.of();

    private final Wire wire;
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, Closeable> clients = new ConcurrentHashMap<>();
    private final Map<String, Script> scripts = new ConcurrentHashMap<>();
    private final Map<String, MessageView> received = new ConcurrentHashMap<>();
    private final AtomicInteger handles = new AtomicInteger();

    Driver(Wire wire) {
        this.wire = wire;
    }

    Map<String, Object> run(JsonObject command)
            throws ClientException, IOException, InterruptedException {
        return switch (text(command, "do")) {
            case "start_producer" -> startProducer(command);
            case "start_simple_consumer" -> startSimpleConsumer(command);
            case "start_push_consumer" -> startPushConsumer(command);
            case "script" -> script(command);
            case "send" ->
                sent(producer(command).send(Messages.outgoing(provider, message(command))));
            case "send_in_transaction" -> sendInTransaction(command);
            case "recall" -> recall(command);
            case "receive" -> receive(command);
            case "ack" -> ack(command);
            case "change_invisible" -> changeInvisible(command);
            case "load" -> new Load(provider, command).run();
            case "stop" -> stop(command);
            default -> throw new UnsupportedOperationException("no command " + command);
        };
    }

    private Map<String, Object> startProducer(JsonObject command) throws ClientException {
        Script script = new Script(text(command, "client"), wire);
        scripts.put(text(command, "client"), script);
        List<String> topics = new ArrayList<>();
        command.getAsJsonArray("topics").forEach(one -> topics.add(one.getAsString()));
        return started(
                command,
                provider.newProducerBuilder()
                        .setClientConfiguration(configuration(command))
                        .setTopics(topics.toArray(String[]::new))
                        .setTransactionChecker(script)
                        .build());
    }

    private Map<String, Object> startSimpleConsumer(JsonObject command) throws ClientException {
        return started(
                command,
                provider.newSimpleConsumerBuilder()
                        .setClientConfiguration(configuration(command))
                        .setConsumerGroup(text(command, "group"))
                        .setAwaitDuration(duration(command, "wait_ms"))
                        .setSubscriptionExpressions(subscription(command))
                        .build());
    }

    private Map<String, Object> startPushConsumer(JsonObject command) throws ClientException {
        return started(
                command,
                provider.newPushConsumerBuilder()
                        .setClientConfiguration(configuration(command))
                        .setConsumerGroup(text(command, "group"))
                        .setSubscriptionExpressions(subscription(command))
                        .setMessageListener(listener(command))
                        .build());
    }

    private MessageListener listener(JsonObject command) {
        Map<String, AtomicInteger> left = new ConcurrentHashMap<>();
        command.getAsJsonObject("fail")
                .entrySet()
                .forEach(
                        one ->
                                left.put(
                                        one.getKey(),
                                        new AtomicInteger(one.getValue().getAsInt())));
        return message -> {
            AtomicInteger refusals = left.get(message.getKeys().iterator().next());
            int count = refusals == null ? 0 : refusals.get();
            boolean accepted = count == 0;
            if (count > 0) {
                refusals.decrementAndGet();
            }
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("client", text(command, "client"));
            facts.put("accepted", accepted);
            facts.put("view", Messages.view(message));
            wire.event("shown", facts);
            while (count < 0) {
                LockSupport.park();
            }
            return accepted ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        };
    }

    private Map<String, Object> script(JsonObject command) {
        List<String> checks = new ArrayList<>();
        command.getAsJsonArray("checks").forEach(one -> checks.add(one.getAsString()));
        scripts.get(text(command, "client")).tell(text(command, "key"), checks);
        return DONE;
    }

    private Map<String, Object> sendInTransaction(JsonObject command) throws ClientException {
        Transaction transaction = producer(command).beginTransaction();
        SendReceipt receipt =
                producer(command)
                        .send(Messages.outgoing(provider, message(command)), transaction);
        switch (text(command, "then")) {
            case "commit" -> transaction.commit();
            case "rollback" -> transaction.rollback();
            default -> { }
        }
        return sent(receipt);
    }

    private Map<String, Object> recall(JsonObject command) throws ClientException {
        return Map.of(
                "message_id",
                producer(command)
                        .recallMessage(text(command, "topic"), text(command, "recall_handle"))
                        .getMessageId()
                        .toString());
    }

    private Map<String, Object> receive(JsonObject command) throws ClientException {
        List<Map<String, Object>> rows = new ArrayList<>();
        int most = command.get("max").getAsInt();
        for (MessageView message :
                consumer(command).receive(most, duration(command, "invisible_ms"))) {
            String handle = String.valueOf(handles.incrementAndGet());
            received.put(handle, message);
            rows.add(Map.of("handle", handle, "view", Messages.view(message)));
        }
        return Map.of("messages", rows);
    }

    private Map<String, Object> ack(JsonObject command) throws ClientException {
        consumer(command).ack(received.get(text(command, "handle")));
        return DONE;
    }

    private Map<String, Object> changeInvisible(JsonObject command) throws ClientException {
        MessageView message = received.get(text(command, "handle"));
        consumer(command).changeInvisibleDuration(message, duration(command, "invisible_ms"));
        return DONE;
    }

    private Map<String, Object> stop(JsonObject command) throws IOException {
        clients.remove(text(command, "client")).close();
        return DONE;
    }

    private Map<String, Object> started(JsonObject command, Closeable client) {
        clients.put(text(command, "client"), client);
        return Map.of("client_id", client.toString());
    }

    private Producer producer(JsonObject command) {
        return (Producer) clients.get(text(command, "client"));
    }

    private SimpleConsumer consumer(JsonObject command) {
        return (SimpleConsumer) clients.get(text(command, "client"));
    }

    private static ClientConfiguration configuration(JsonObject command) {
        return ClientConfiguration.newBuilder()
                .setEndpoints(text(command, "endpoints"))
                .enableSsl(command.get("tls").getAsBoolean())
                .setRequestTimeout(Duration.ofSeconds(10))
                .build();
    }

    private static Map<String, FilterExpression> subscription(JsonObject command) {
        return Map.of(text(command, "topic"), new FilterExpression(text(command, "expression")));
    }

    private static Map<String, Object> sent(SendReceipt receipt) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("message_id", receipt.getMessageId().toString());
        facts.put("recall_handle", receipt.getRecallHandle());
        return facts;
    }

    private static JsonObject message(JsonObject command) {
        return command.getAsJsonObject("message");
    }

    private static Duration duration(JsonObject command, String name) {
        return Duration.ofMillis(command.get(name).getAsLong());
    }

    private static String text(JsonObject command, String name) {
        return command.get(name).getAsString();
    }
}
