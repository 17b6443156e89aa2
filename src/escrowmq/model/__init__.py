"""Nouns that cross borders: messages, offsets, errors, the clock.  Imports nothing of ours."""
