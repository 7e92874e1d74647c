"""Network namespaces: configuration over netlink, and traffic capture."""
