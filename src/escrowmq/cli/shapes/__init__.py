"""JSON shapes that commands print with ``-o json``."""
