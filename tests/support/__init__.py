"""What the tests share. Importable as `support.NAME` (see `pythonpath` in pyproject.toml)."""
