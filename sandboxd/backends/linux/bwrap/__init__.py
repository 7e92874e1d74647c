"""bubblewrap: options, the processes it makes, and the set-up around it."""
