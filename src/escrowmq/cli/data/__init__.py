"""Commands on a data directory: check, repair, back up, restore."""
