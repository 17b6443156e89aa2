"""Generates the reference pages from the code: ``make docs``."""
