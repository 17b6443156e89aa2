"""RocketMQ's remoting protocol: frames, headers, bodies and codes."""
