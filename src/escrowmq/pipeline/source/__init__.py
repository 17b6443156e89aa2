"""``spark.read`` and ``readStream``: committed messages, decoded by the page."""
