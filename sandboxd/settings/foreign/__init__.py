"""Conversion of settings of other programs into those of sandboxd. Pure."""
