"""macOS: a plan becomes a Seatbelt profile for `sandbox-exec`; denials come from the system's log.

`planner.py` asks about the host and plans. `seatbelt/` makes the profile; its fixed rules are files in `seatbelt/sbpl`.
`supervise.py` is started by a client: it runs `sandbox-exec` and ends it together with its owner. `reception.py` is the
daemon's end of that. `members.py` finds the processes of a sandbox. `monitor.py` and `log_lines.py` report denials.

Nothing here has run on a Mac: docs/macos.md says what was proven, and how.
"""
