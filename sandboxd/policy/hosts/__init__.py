"""Host names, addresses and ports: patterns, decisions and routes. Pure."""
