"""Connections to brokers: routes, heartbeats, retries, one event loop in a thread."""
