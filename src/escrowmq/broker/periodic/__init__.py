"""Periodic work and scheduled backups."""
