package escrowmq.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that fetch when told: the lite one, and the old one that names each offset. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private static final int BATCH = 32;

    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();

    Map<String, Object> startLite(Request request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.text("group"));
        consumer.setNamesrvAddr(request.text("name_server"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(request.flag("auto_commit"));
        if (!request.flag("assign")) {
            consumer.subscribe(request.text("topic"), request.text("expression", "*"));
        }
        consumer.start();
        if (request.flag("assign")) {
            consumer.assign(consumer.fetchMessageQueues(request.text("topic")));
        }
        lites.put(request.text("client"), consumer);
        return Map.of("client_id", consumer.buildMQClientId());
    }

    Map<String, Object> poll(Request request) {
        return Map.of("messages", Messages.writeAll(
                lite(request).poll(request.number("timeout_ms"))));
    }

    void seek(Request request) throws Exception {
        DefaultLitePullConsumer consumer = lite(request);
        MessageQueue queue = queue(consumer.fetchMessageQueues(request.text("topic")), request);
        switch (request.text("to")) {
            case "begin" -> consumer.seekToBegin(queue);
            case "end" -> consumer.seekToEnd(queue);
            default -> consumer.seek(queue, request.number("to"));
        }
    }

    void commit(Request request) {
        lite(request).commitSync();
    }

    Map<String, Object> startPull(Request request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.text("group"));
        consumer.setNamesrvAddr(request.text("name_server"));
        consumer.start();
        pulls.put(request.text("client"), consumer);
        return Map.of("client_id", consumer.buildMQClientId());
    }

    Map<String, Object> queues(Request request) throws Exception {
        List<Integer> ids = new ArrayList<>();
        pull(request).fetchSubscribeMessageQueues(request.text("topic"))
                .forEach(queue -> ids.add(queue.getQueueId()));
        ids.sort(null);
        return Map.of("queues", ids);
    }

    Map<String, Object> pullOnce(Request request) throws Exception {
        DefaultMQPullConsumer consumer = pull(request);
        MessageQueue queue =
                queue(consumer.fetchSubscribeMessageQueues(request.text("topic")), request);
        PullResult result = consumer.pull(queue, request.text("expression", "*"),
                request.number("offset"), request.count("max"));
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getPullStatus().name());
        facts.put("next_offset", result.getNextBeginOffset());
        facts.put("min_offset", result.getMinOffset());
        facts.put("max_offset", result.getMaxOffset());
        facts.put("messages", result.getMsgFoundList() == null
                ? List.of() : Messages.writeAll(result.getMsgFoundList()));
        return facts;
    }

    Map<String, Object> pullAll(Request request) throws Exception {
        DefaultMQPullConsumer consumer = pull(request);
        String expression = request.text("expression", "*");
        List<Map<String, Object>> found = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(request.text("topic"))) {
            PullResult result = consumer.pull(queue, expression, 0, BATCH);
            while (result.getPullStatus() != PullStatus.NO_NEW_MSG) {
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(Messages.writeAll(result.getMsgFoundList()));
                }
                result = consumer.pull(queue, expression, result.getNextBeginOffset(), BATCH);
            }
        }
        return Map.of("messages", found);
    }

    Map<String, Object> offsets(Request request) throws Exception {
        DefaultMQPullConsumer consumer = pull(request);
        MessageQueue queue =
                queue(consumer.fetchSubscribeMessageQueues(request.text("topic")), request);
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("min", consumer.minOffset(queue));
        facts.put("max", consumer.maxOffset(queue));
        facts.put("at_time", consumer.searchOffset(queue, request.number("at_ms")));
        facts.put("earliest_stored_at_ms", consumer.earliestMsgStoreTime(queue));
        facts.put("committed", consumer.fetchConsumeOffset(queue, true));
        return facts;
    }

    private static MessageQueue queue(Iterable<MessageQueue> queues, Request request) {
        for (MessageQueue queue : queues) {
            if (queue.getQueueId() == request.count("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("the topic has no such queue");
    }

    private DefaultLitePullConsumer lite(Request request) {
        return lites.get(request.text("client"));
    }

    private DefaultMQPullConsumer pull(Request request) {
        return pulls.get(request.text("client"));
    }

    void stop(String client) {
        if (lites.containsKey(client)) {
            lites.remove(client).shutdown();
        } else {
            pulls.remove(client).shutdown();
        }
    }

    boolean knows(String client) {
        return lites.containsKey(client) || pulls.containsKey(client);
    }
}
