"""Checking a store, repairing it, and copying it."""
