"""Alerts: their rules, their configuration, and sending notices."""
