"""Landlock: confinement per kernel version, and the probe for it."""
