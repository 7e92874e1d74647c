"""Views of the daemon's state for screens: answers of its methods in, rows out. Pure.

`sandboxd ui` draws them in a terminal, `sandboxd web` in a browser. Every text in a row is one printable line."""
