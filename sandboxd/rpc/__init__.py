"""The RPC interface: socket, callers, dispatch, and one handler file for each noun."""
