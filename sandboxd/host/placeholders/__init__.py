"""Placeholders for protected names that do not exist."""
