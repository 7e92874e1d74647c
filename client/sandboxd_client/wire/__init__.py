"""Parts of the protocol that client and daemon share.

Standard library only, no I/O except in `location`. `framing`, `jsontext` and `location` are on the way of every
`sandboxd run` and import next to nothing: an interpreter starts in about 10 ms, and `import json` alone adds 6."""
