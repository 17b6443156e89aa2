"""The commit log: frames, their encoding, segments, and the torn tail."""
