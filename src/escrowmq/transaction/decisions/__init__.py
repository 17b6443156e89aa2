"""One function per command: the core's state and a command in, a decision out."""
