"""The command line: a client of the daemon; only `serve` runs the daemon itself.

`main`, `arguments`, `output`, `run` and `foreground` are on the path of `sandboxd run`: they import next to nothing."""
