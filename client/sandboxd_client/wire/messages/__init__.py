"""Records of the parameters and results of every method (`methods`)."""
