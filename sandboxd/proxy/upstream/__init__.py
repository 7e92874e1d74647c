"""Connections through other proxies."""
