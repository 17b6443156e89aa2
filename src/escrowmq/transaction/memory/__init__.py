"""What the core remembers besides half messages: topics, names, batches, parts."""
