"""Settings at run time: reload, local edits, trust, subscriptions and checks."""
