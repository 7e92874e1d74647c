"""Back ends: a Plan becomes arguments or a profile for a platform's own tool."""
