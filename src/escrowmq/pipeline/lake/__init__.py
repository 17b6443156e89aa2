"""The lake: Delta tables, what is asked of them, and their upkeep."""
