"""Sockets of the proxies: streams, relays, tunnels, client watch."""
