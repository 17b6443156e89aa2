"""The hunt at the borders: random programs over every driver, compared with a model."""
