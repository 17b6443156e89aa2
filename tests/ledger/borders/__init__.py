"""The hunt at the borders: random programs over every driver, held against a model."""
