"""What both ends of the socket share: framing, codes, the socket's place, parameter checking and the messages.

Standard library only, no I/O except in `location`. `framing`, `jsontext` and `location` are on the way of every
`sandboxd run` and import next to nothing: an interpreter starts in about 10 ms, and `import json` alone adds 6.
"""
