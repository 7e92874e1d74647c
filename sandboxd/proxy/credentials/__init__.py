"""Credentials that the proxy puts into requests, and stand-ins for them."""
