"""Connections through parent proxies, and to user proxies."""
