"""What one daemon tells the next: records as JSON with a list of descriptors. Pure; docs/restarts.md says what for."""
