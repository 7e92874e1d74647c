"""RPC interface: socket, callers, dispatch, and a handler file for each noun."""
