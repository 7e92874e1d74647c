"""`sandboxd web`: a page for people, and JSON-RPC over WebSocket for programs.

A client of the daemon in a process of its own. So a fault here cannot hurt the daemon. The daemon has no wake-up for
the page while no browser watches."""
