"""Stand-ins for `sandbox-exec` and `log` that behave like the real ones in each documented way."""
