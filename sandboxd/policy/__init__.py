"""The policy, and pure decisions on commands, hosts, paths and sockets."""
