"""``df.write`` and ``writeStream``: each row becomes a message, exactly once."""
