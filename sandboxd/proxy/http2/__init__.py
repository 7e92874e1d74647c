"""HTTP/2 in connections whose TLS ends in the proxy."""
