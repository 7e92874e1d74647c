"""Sockets as the proxies use them: streams, relays, tunnels, and the watch for a client that left."""
