"""What a broker knows while it runs: topics, groups, clients, queues, counters."""
