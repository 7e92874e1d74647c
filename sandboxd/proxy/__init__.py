"""The filtering proxies: one gate, two protocols, one way out. `server.ProxyServer` is the door, `gate` the meaning."""
