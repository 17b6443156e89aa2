package escrowmq.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Looking messages up, and the mqadmin command line in this process. */
final class Admin {
    Map<String, Object> queryByKey(Request request) throws Exception {
        DefaultMQAdminExt admin = started(request);
        try {
            return Map.of("messages", Messages.writeAll(admin.queryMessage(
                    request.text("topic"), request.text("key"), request.count("max"),
                    request.number("begin_at_ms", 0), request.number("end_at_ms", Long.MAX_VALUE))
                    .getMessageList()));
        } finally {
            admin.shutdown();
        }
    }

    Map<String, Object> view(Request request) throws Exception {
        DefaultMQAdminExt admin = started(request);
        try {
            MessageExt message =
                    admin.viewMessage(request.text("topic"), request.text("message_id"));
            return Map.of("message", Messages.write(message));
        } finally {
            admin.shutdown();
        }
    }

    Map<String, Object> resume(Request request) throws Exception {
        DefaultMQAdminExt admin = started(request);
        try {
            return Map.of("resumed", admin.resumeCheckHalfMessage(
                    request.text("topic"), request.text("message_id")));
        } finally {
            admin.shutdown();
        }
    }

    private static DefaultMQAdminExt started(Request request) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        // As mqadmin itself does: an id of its own, since each is shut down again.
        admin.setInstanceName(Long.toString(System.nanoTime()));
        admin.setNamesrvAddr(request.text("name_server"));
        admin.start();
        return admin;
    }

    /** One at a time: what the command prints is caught from the process's own streams. */
    synchronized Map<String, Object> mqadmin(Request request) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(request.texts("arguments").toArray(String[]::new), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        String complaint = complained.toString(StandardCharsets.UTF_8);
        // The command line prints the trace of what went wrong, and ends as if nothing had.
        if (complaint.contains("Exception")) {
            throw new IllegalStateException(complaint);
        }
        return Map.of("text", printed.toString(StandardCharsets.UTF_8));
    }
}
