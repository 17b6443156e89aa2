"""Deleting the oldest part of the log, and carrying forward what is still needed."""
