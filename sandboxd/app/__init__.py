"""The composition root: make the parts of the daemon and connect them."""
