"""macOS: a Plan becomes a Seatbelt profile for `sandbox-exec`, and denials come from the system's log.

    planner.py     which questions about the host have to be answered, and the plan with the answers
    file_rules.py  what may be read and written, as ordered rules
    globs.py       path patterns as regular expressions
    protected.py   protected names, those that do not exist yet included
    profile.py     rules + switches -> profile text and parameters (the fixed rules are files in sbpl/)
    environment.py what differs in the environment: the proxies have a password here
    supervise.py   what a client starts: runs sandbox-exec and ends it together with its owner
    reception.py   where the supervisors meet their daemon
    members.py     which processes are in a sandbox, so that a whole tree can be ended
    log_lines.py, log_monitor.py, monitor.py    denials
    backend.py     the Backend
    launchd.py     the agent that starts the daemon

Nothing here has run on a Mac: docs/macos.md says what was proven, and how.
"""
