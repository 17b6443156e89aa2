"""Topics and the life lines of transactions into the lake, exactly once."""
