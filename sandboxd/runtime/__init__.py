"""Runtime: sessions, the commands running in them, what was blocked, and what must be cleaned away afterwards."""
