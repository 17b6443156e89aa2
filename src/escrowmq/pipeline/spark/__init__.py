"""Starting Spark from what ``pip install`` brings: Java, its start cache, the session."""
