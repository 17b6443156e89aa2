"""Signatures of requests, for each protocol: pure functions over what a request says."""
