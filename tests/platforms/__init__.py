"""Other systems: user lands, kernels and the smoke set that is tried in them."""
