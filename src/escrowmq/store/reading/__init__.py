"""Reads of what is durable: messages, transactions, ranges of the log."""
