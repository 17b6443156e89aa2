"""Keeps child processes running: starts, watches, restarts and stops them."""
