"""The helper `apply-seccomp`: protocol, connections and launches."""
