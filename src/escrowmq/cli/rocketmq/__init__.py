"""RocketMQ's names for settings: the map to ours, and the reader of its file."""
