"""The macOS back end: a Seatbelt profile, and denials from the system's log.

`planner.py` queries the host and plans. `seatbelt/` makes the profile; its fixed rules are files in `seatbelt/sbpl`. A
client starts `supervise.py`, which runs `sandbox-exec` and ends it together with its owner. `reception.py` is the
daemon's end of that. `members.py` finds the processes of a sandbox. `monitor.py` and `log_lines.py` report denials.

Nothing here has run on a Mac: docs/macos.md says what was verified, and how."""
