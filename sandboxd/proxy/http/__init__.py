"""The HTTP proxy: message parsing, the exchange with an origin, refusals."""
