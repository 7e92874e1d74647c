"""Captured connections, and server names in TLS handshakes."""
