"""Bytes to requests and back, no sockets; the only place that knows RocketMQ's wire names."""
