"""Linux: bubblewrap, the helper `apply-seccomp` as process 1, seccomp filters, and the bridge to the daemon."""
