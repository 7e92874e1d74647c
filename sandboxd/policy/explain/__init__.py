"""Decisions and violations in words: explanations, hints, suggestions. Pure."""
