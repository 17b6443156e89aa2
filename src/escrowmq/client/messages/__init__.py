"""Messages as users see them, their codecs, and calls of users' functions."""
