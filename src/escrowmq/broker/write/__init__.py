"""The one writer of the store, its queue, its clock, and its slow work."""
