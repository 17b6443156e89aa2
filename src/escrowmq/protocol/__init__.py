"""Convert bytes to requests and back, without sockets. Only this package uses RocketMQ's names."""
