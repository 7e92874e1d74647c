"""Unix sockets: decisions, and sockets that control something outside."""
