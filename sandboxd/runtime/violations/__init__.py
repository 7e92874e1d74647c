"""Denial events, the violation store and its feed."""
