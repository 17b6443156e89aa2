package escrowmq.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;

/** What 4.9 and 5.5 spell differently: a package that moved, a method that came later. */
final class Versions {
    private Versions() {}

    /** The type of the argument lies in another package in each version; its constants do not differ. */
    static void setMessageModel(Object consumer, String model) throws ReflectiveOperationException {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object constant : method.getParameterTypes()[0].getEnumConstants()) {
                    if (((Enum<?>) constant).name().equals(model)) {
                        method.invoke(consumer, constant);
                        return;
                    }
                }
            }
        }
        throw new IllegalArgumentException("no message model " + model);
    }

    /** Since 5.0: the broker shares out queues and says whether they are pulled or popped. */
    static void leaveQueuesToBroker(Object consumer, long invisibleMs)
            throws ReflectiveOperationException {
        consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, invisibleMs);
    }

    static void setDeliverAt(Message message, long atMs) {
        callLater(message, "setDeliverTimeMs", atMs);
    }

    static void setDelay(Message message, long ms) {
        callLater(message, "setDelayTimeMs", ms);
    }

    private static void callLater(Message message, String name, long value) {
        try {
            Message.class.getMethod(name, long.class).invoke(message, value);
        } catch (NoSuchMethodException missing) {
            throw new UnsupportedOperationException("this client has no " + name, missing);
        } catch (IllegalAccessException | InvocationTargetException broken) {
            throw new IllegalStateException(broken);
        }
    }

    /** The code that the broker answered with, or null when it was not the broker that refused. */
    static Integer responseCode(Throwable problem) {
        for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException broker) {
                return broker.getResponseCode();
            }
            if (cause instanceof MQClientException client && client.getResponseCode() > 0) {
                return client.getResponseCode();
            }
        }
        return null;
    }
}
