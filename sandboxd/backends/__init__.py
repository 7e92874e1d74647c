"""Back ends: from a Plan to what a platform's own tool is told. Pure text, apart from the set-up of network namespaces."""
