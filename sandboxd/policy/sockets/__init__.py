"""Unix sockets: decisions, and the sockets that control something outside. Pure."""
