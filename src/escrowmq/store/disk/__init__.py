"""The port to the file system, the lock, free space, and fixed-size records."""
