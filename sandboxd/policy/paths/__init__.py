"""Paths of rules, protected names and decisions on paths. Pure."""
