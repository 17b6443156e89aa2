"""``meta.db``: consumer offsets and a projection of the catalog, in SQLite."""
