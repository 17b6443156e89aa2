"""The user's database transaction on every driver."""
