"""Sockets and connections: frames in, frames out, within limits."""
