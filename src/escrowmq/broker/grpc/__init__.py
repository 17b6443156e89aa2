"""Handlers of RocketMQ's gRPC methods, for its 5.x clients."""
