"""RocketMQ's gRPC protocol: the messages of ``apache.rocketmq.v2.MessagingService``, its codes."""
