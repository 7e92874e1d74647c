"""Change detection: directories, names and inotify."""
