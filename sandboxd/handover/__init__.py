"""Hand-over document: records as JSON with a list of descriptors. Pure."""
