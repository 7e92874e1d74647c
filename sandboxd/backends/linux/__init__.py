"""Linux: bubblewrap, the helper as process 1, seccomp, Landlock and the bridge."""
