"""HTTP/2 and gRPC as bytes: frames, header compression, message framing. No sockets."""
