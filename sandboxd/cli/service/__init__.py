"""`sandboxd service`: units of systemd and agents of launchd."""
