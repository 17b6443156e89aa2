"""``df.write`` and ``writeStream``: each row a message, exactly once."""
