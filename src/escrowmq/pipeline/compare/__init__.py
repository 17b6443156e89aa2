"""The half/op comparison: folds new records into a checkpoint and compares with the state store."""
