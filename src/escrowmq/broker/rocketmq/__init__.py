"""Handlers of RocketMQ's requests: producers, consumers, tools, routes."""
