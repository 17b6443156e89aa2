package escrowmq.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that report each message, and refuse the first deliveries of some keys. */
final class PushConsumers {
    private final Wire wire;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();

    PushConsumers(Wire wire) {
        this.wire = wire;
    }

    Map<String, Object> start(Request request) throws Exception {
        String client = request.text("client");
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(request.text("group"), request.has("trace_topic"),
                        request.text("trace_topic", ""));
        consumer.setNamesrvAddr(request.text("name_server"));
        Versions.setMessageModel(consumer, request.text("model", "CLUSTERING"));
        // Broadcasting consumers of one process would otherwise share one id.
        consumer.setInstanceName(client + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
                request.text("from_where", "CONSUME_FROM_FIRST_OFFSET")));
        if (request.has("heartbeat_ms")) {
            consumer.setHeartbeatBrokerInterval(request.count("heartbeat_ms"));
        }
        if (request.has("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(request.count("max_reconsume_times"));
        }
        if (request.flag("pop")) {
            Versions.leaveQueuesToBroker(consumer, request.count("invisible_ms"));
        }
        subscribe(consumer, request);
        listen(consumer, client, request);
        consumer.start();
        consumers.put(client, consumer);
        return Map.of("client_id", consumer.buildMQClientId());
    }

    private static void subscribe(DefaultMQPushConsumer consumer, Request request)
            throws Exception {
        String expression = request.text("expression", "*");
        if (request.flag("sql")) {
            consumer.subscribe(request.text("topic"), MessageSelector.bySql(expression));
        } else {
            consumer.subscribe(request.text("topic"), expression);
        }
    }

    private void listen(DefaultMQPushConsumer consumer, String client, Request request) {
        Refusals refusals = new Refusals(request.table("fail"));
        if (request.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    take(client, messages, refusals)
                            ? ConsumeOrderlyStatus.SUCCESS
                            : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                    take(client, messages, refusals)
                            ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                            : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    private boolean take(String client, List<MessageExt> messages, Refusals refusals) {
        boolean accepted = true;
        for (MessageExt message : messages) {
            boolean refused = refusals.refuses(message.getKeys());
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("client", client);
            facts.put("accepted", !refused);
            facts.put("message", Messages.write(message));
            wire.event("message", facts);
            accepted &= !refused;
        }
        return accepted;
    }

    void stop(String client) {
        consumers.remove(client).shutdown();
    }

    boolean knows(String client) {
        return consumers.containsKey(client);
    }

    /** How often each key is still to be refused. */
    private static final class Refusals {
        private final Map<String, AtomicInteger> left = new ConcurrentHashMap<>();

        Refusals(Map<String, String> counts) {
            counts.forEach(
                    (key, count) -> left.put(key, new AtomicInteger(Integer.parseInt(count))));
        }

        boolean refuses(String key) {
            return key != null && left.containsKey(key) && left.get(key).getAndDecrement() > 0;
        }
    }
}
