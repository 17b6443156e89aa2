"""The lake: Delta tables, queries on them, and their upkeep."""
