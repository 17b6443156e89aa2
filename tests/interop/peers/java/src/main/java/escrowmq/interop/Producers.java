package escrowmq.interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Every way to send. */
final class Producers {
    private final Wire wire;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Script> scripts = new ConcurrentHashMap<>();

    Producers(Wire wire) {
        this.wire = wire;
    }

    Map<String, Object> start(Request request) throws MQClientException {
        String client = request.text("client");
        DefaultMQProducer producer = request.flag("transactional")
                ? transactional(client, request)
                : new DefaultMQProducer(request.text("group"), request.has("trace_topic"),
                        request.text("trace_topic", ""));
        producer.setNamesrvAddr(request.text("name_server"));
        if (request.has("heartbeat_ms")) {
            producer.setHeartbeatBrokerInterval(request.count("heartbeat_ms"));
        }
        if (request.has("send_timeout_ms")) {
            producer.setSendMsgTimeout(request.count("send_timeout_ms"));
        }
        if (request.has("retries")) {
            producer.setRetryTimesWhenSendFailed(request.count("retries"));
            producer.setRetryTimesWhenSendAsyncFailed(request.count("retries"));
        }
        if (request.has("compress_over_bytes")) {
            producer.setCompressMsgBodyOverHowmuch(request.count("compress_over_bytes"));
        }
        producer.start();
        producers.put(client, producer);
        return Map.of("client_id", producer.buildMQClientId());
    }

    private DefaultMQProducer transactional(String client, Request request) {
        TransactionMQProducer producer = new TransactionMQProducer(request.text("group"));
        Script script = new Script(client, wire);
        producer.setTransactionListener(script);
        scripts.put(client, script);
        return producer;
    }

    void stop(String client) {
        producers.remove(client).shutdown();
    }

    boolean knows(String client) {
        return producers.containsKey(client);
    }

    void tell(Request request) {
        scripts.get(request.text("client"))
                .tell(request.text("key"), request.text("local"), request.texts("checks"));
    }

    void release(Request request) {
        scripts.get(request.text("client")).release(request.text("key"), request.text("answer"));
    }

    Map<String, Object> send(Request request) throws Exception {
        DefaultMQProducer producer = producers.get(request.text("client"));
        List<Message> messages = Messages.readAll(request);
        if (messages.size() > 1) {
            return Messages.write(producer.send(messages));
        }
        Message message = messages.get(0);
        if (request.has("queue")) {
            int queue = request.count("queue");
            return Messages.write(
                    producer.send(message, (queues, one, index) -> queues.get((int) index), queue));
        }
        return switch (request.text("mode", "sync")) {
            case "sync" -> Messages.write(producer.send(message));
            case "async" -> Messages.write(later(producer, message));
            case "oneway" -> {
                producer.sendOneway(message);
                yield Map.of("status", "ONEWAY");
            }
            default -> throw new IllegalArgumentException("no such mode");
        };
    }

    private static SendResult later(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> done = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.complete(result);
            }

            @Override
            public void onException(Throwable problem) {
                done.completeExceptionally(problem);
            }
        });
        return done.get();
    }

    Map<String, Object> sendInTransaction(Request request) throws MQClientException {
        TransactionMQProducer producer =
                (TransactionMQProducer) producers.get(request.text("client"));
        return Messages.write(
                producer.sendMessageInTransaction(Messages.read(request.part("message")), null));
    }
}
