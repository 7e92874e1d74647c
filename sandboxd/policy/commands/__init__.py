"""Shell lines and the decisions on commands. Pure."""
