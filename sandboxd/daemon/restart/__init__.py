"""Restart in place, and the store for crashes."""
