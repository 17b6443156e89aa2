"""Facts about transactions as DataFrames, from brokers and from their logs."""
