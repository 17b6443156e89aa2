"""The SDK and its kin: they know the protocol, neither the store nor the core."""
