"""Opening a store: its format, its checkpoint, and the replay of its log."""
