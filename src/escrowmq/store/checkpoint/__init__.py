"""Checkpoints: where a restart begins its replay."""
