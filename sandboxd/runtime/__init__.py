"""Runtime: sessions, their commands, violations, and what is removed afterwards."""
