package escrowmq.interop;

import java.util.Map;

/** Which command goes where. */
final class Commands {
    private static final Map<String, Object> DONE = Map.of();

    private final Producers producers;
    private final PushConsumers pushConsumers;
    private final PullConsumers pullConsumers = new PullConsumers();
    private final Admin admin = new Admin();

    Commands(Wire wire) {
        producers = new Producers(wire);
        pushConsumers = new PushConsumers(wire);
    }

    Map<String, Object> run(Request request) throws Exception {
        return switch (request.text("do")) {
            case "start_producer" -> producers.start(request);
            case "script" -> done(() -> producers.tell(request));
            case "release" -> done(() -> producers.release(request));
            case "send" -> producers.send(request);
            case "send_in_transaction" -> producers.sendInTransaction(request);
            case "start_push_consumer" -> pushConsumers.start(request);
            case "start_lite_pull_consumer" -> pullConsumers.startLite(request);
            case "poll" -> pullConsumers.poll(request);
            case "seek" -> done(() -> pullConsumers.seek(request));
            case "commit" -> done(() -> pullConsumers.commit(request));
            case "start_pull_consumer" -> pullConsumers.startPull(request);
            case "queues" -> pullConsumers.queues(request);
            case "pull" -> pullConsumers.pullOnce(request);
            case "pull_all" -> pullConsumers.pullAll(request);
            case "offsets" -> pullConsumers.offsets(request);
            case "query_by_key" -> admin.queryByKey(request);
            case "view" -> admin.view(request);
            case "resume" -> admin.resume(request);
            case "mqadmin" -> admin.mqadmin(request);
            case "load" -> new Load(request).run();
            case "stop" -> done(() -> stop(request.text("client")));
            default -> throw new UnsupportedOperationException("no command " + request.text("do"));
        };
    }

    private void stop(String client) {
        if (producers.knows(client)) {
            producers.stop(client);
        } else if (pushConsumers.knows(client)) {
            pushConsumers.stop(client);
        } else if (pullConsumers.knows(client)) {
            pullConsumers.stop(client);
        } else {
            throw new IllegalArgumentException("no client " + client);
        }
    }

    private static Map<String, Object> done(Step step) throws Exception {
        step.run();
        return DONE;
    }

    @FunctionalInterface
    private interface Step {
        void run() throws Exception;
    }
}
