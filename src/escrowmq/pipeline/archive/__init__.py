"""Archives topics and the life lines of transactions to the lake, exactly once."""
