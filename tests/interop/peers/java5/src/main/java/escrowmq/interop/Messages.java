package escrowmq.interop;

import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Messages to and from JSON. */
final class Messages {
    private Messages() {}

    static Message outgoing(ClientServiceProvider provider, JsonObject fields) {
        MessageBuilder builder =
                provider.newMessageBuilder()
                        .setTopic(fields.get("topic").getAsString())
                        .setKeys(fields.get("key").getAsString())
                        .setBody(Base64.getDecoder().decode(fields.get("body").getAsString()));
        if (fields.has("tag")) {
            builder.setTag(fields.get("tag").getAsString());
        }
        if (fields.has("message_group")) {
            builder.setMessageGroup(fields.get("message_group").getAsString());
        }
        if (fields.has("deliver_at_ms")) {
            builder.setDeliveryTimestamp(fields.get("deliver_at_ms").getAsLong());
        }
        fields.getAsJsonObject("properties")
                .entrySet()
                .forEach(one -> builder.addProperty(one.getKey(), one.getValue().getAsString()));
        return builder.build();
    }

    static Map<String, Object> view(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("message_id", message.getMessageId().toString());
        facts.put("topic", message.getTopic());
        facts.put("body", Base64.getEncoder().encodeToString(bytes));
        facts.put("keys", message.getKeys());
        facts.put("tag", message.getTag().orElse(null));
        facts.put("properties", message.getProperties());
        facts.put("message_group", message.getMessageGroup().orElse(null));
        facts.put("attempt", message.getDeliveryAttempt());
        return facts;
    }
}
