"""Values of credentials, and what commands see in their place."""
