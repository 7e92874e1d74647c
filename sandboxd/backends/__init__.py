"""Back ends: from a Plan to what a platform's own tool is told. Pure text, but for network namespaces."""
