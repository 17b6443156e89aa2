package escrowmq.interop;

import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Between the client's messages and ours on the line. */
final class Messages {
    private Messages() {}

    static Message read(Request fields) {
        Message message = new Message(
                fields.text("topic"), Base64.getDecoder().decode(fields.text("body")));
        if (fields.has("tags")) {
            message.setTags(fields.text("tags"));
        }
        if (fields.has("keys")) {
            message.setKeys(fields.text("keys"));
        }
        if (fields.has("delay_level")) {
            message.setDelayTimeLevel(fields.count("delay_level"));
        }
        if (fields.has("deliver_at_ms")) {
            Versions.setDeliverAt(message, fields.number("deliver_at_ms"));
        }
        if (fields.has("delay_ms")) {
            Versions.setDelay(message, fields.number("delay_ms"));
        }
        fields.table("properties").forEach(message::putUserProperty);
        return message;
    }

    static List<Message> readAll(Request request) {
        List<Message> messages = new ArrayList<>();
        request.parts("messages").forEach(fields -> messages.add(read(fields)));
        return messages;
    }

    static Map<String, Object> write(MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("message_id", message.getMsgId());
        fields.put("offset_message_id",
                message instanceof MessageClientExt seen ? seen.getOffsetMsgId() : null);
        fields.put("topic", message.getTopic());
        fields.put("queue", message.getQueueId());
        fields.put("queue_offset", message.getQueueOffset());
        fields.put("log_offset", message.getCommitLogOffset());
        fields.put("keys", message.getKeys());
        fields.put("tags", message.getTags());
        fields.put("properties", message.getProperties());
        fields.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        fields.put("reconsume_times", message.getReconsumeTimes());
        fields.put("stored_at_ms", message.getStoreTimestamp());
        fields.put("born_at_ms", message.getBornTimestamp());
        fields.put("prepared_offset", message.getPreparedTransactionOffset());
        fields.put("sys_flag", message.getSysFlag());
        return fields;
    }

    static List<Map<String, Object>> writeAll(List<MessageExt> messages) {
        List<Map<String, Object>> all = new ArrayList<>();
        messages.forEach(message -> all.add(write(message)));
        return all;
    }

    static Map<String, Object> write(SendResult result) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("status", result.getSendStatus().name());
        fields.put("message_id", result.getMsgId());
        fields.put("offset_message_id", result.getOffsetMsgId());
        fields.put("transaction_id", result.getTransactionId());
        fields.put("queue_offset", result.getQueueOffset());
        MessageQueue queue = result.getMessageQueue();
        fields.put("broker", queue == null ? null : queue.getBrokerName());
        fields.put("queue", queue == null ? null : queue.getQueueId());
        if (result instanceof TransactionSendResult transaction) {
            fields.put("local_state", transaction.getLocalTransactionState().name());
        }
        return fields;
    }
}
