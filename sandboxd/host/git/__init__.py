"""Repositories: git directories, configuration, and the clean-up after commands."""
