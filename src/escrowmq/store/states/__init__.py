"""What state stores share: rows for them, the follower, the choice of the adapter."""
