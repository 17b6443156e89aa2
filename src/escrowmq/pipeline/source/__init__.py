"""``spark.read`` and ``readStream``: committed messages, decoded page by page."""
