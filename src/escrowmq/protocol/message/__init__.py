"""The layout of messages: properties, ids, the stored form; the same for every wire protocol."""
