"""Consume queues: the index that makes messages visible, and dispatch into it."""
