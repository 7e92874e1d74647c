"""The daemon: state, policies, reload, signals and logs."""
