"""The append-only store: commit log, consume queues, state table, recovery."""
