"""The file system of a sandbox: path entries, their order, and the mounts. Pure."""
