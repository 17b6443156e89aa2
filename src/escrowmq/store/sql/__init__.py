"""State store in a relational database, as RocketMQ 3.1.5 and 4.0 had it."""
