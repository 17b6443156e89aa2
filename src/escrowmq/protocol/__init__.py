"""Bytes to requests and back, without a socket.  The only place that knows RocketMQ's names."""
