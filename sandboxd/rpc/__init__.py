"""The door to the daemon: its socket, who is calling, dispatch, and one handler file for each noun."""
