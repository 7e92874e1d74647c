"""Settings files: locate, read, write and watch them. The only part of `settings` with I/O."""
