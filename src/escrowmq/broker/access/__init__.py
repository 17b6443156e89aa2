"""Users of a running broker: their secrets, and the requests that change them."""
