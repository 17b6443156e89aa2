"""Spark from what ``pip install`` brings: Java, its start, its session."""
