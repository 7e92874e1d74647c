"""`sandboxd mcp`."""
