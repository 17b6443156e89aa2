"""State store in mapped files of fixed records, as RocketMQ 3.1.4 had it."""
