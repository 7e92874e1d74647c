"""Captured connections, and the server names in their TLS greetings."""
