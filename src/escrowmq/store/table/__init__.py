"""The state table: one row per half message, in chunks of columns."""
