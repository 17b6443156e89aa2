"""Producers and transactions, in sync and async form."""
