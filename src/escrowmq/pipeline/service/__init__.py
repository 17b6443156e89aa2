"""The pipeline as a process: when it works, on what, and what it reports."""
