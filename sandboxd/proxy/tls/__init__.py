"""TLS that ends in the proxy: certificates, and the two ends of a connection."""
