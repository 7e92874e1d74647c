"""Settings files on this machine: where they are, reading, writing and watching them."""
