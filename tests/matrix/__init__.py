"""A conformance matrix: what a sandbox refuses and lets work, for sandboxd and for others, tried for real."""
