"""Commands that show and change settings."""
