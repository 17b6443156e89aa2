"""Commands that run processes: serve, up, pipeline, demo, bench."""
