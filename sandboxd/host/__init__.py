"""Host: paths, tools, kernel features and directories, as they are on disk."""
