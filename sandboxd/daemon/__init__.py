"""The daemon: its state, the policies it answers from, reloading, signals and logs."""
