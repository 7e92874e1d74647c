"""The command line. It goes through the client; only `serve` runs the daemon itself.

`main`, `arguments`, `output`, `run` and `foreground` are on the way of `sandboxd run`: they import next to nothing.
"""
