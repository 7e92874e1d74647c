"""The filtering proxies.

`server.ProxyServer` accepts, `gate` decides, `outbound` opens connections."""
