"""The SOCKS5 proxy."""
