"""Settings files: locate, read, write and watch them. The only part with I/O."""
