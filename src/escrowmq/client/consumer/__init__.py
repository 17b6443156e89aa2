"""Consumers, their groups and queues, and effects exactly once."""
