"""seccomp: the system call table and the filter program made from it. Pure."""
