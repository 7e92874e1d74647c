"""Plan: the sandbox of one command, from policy and host facts. Pure.

host queries  ->  host facts (answered by `host/`)  ->  view (mounts) + environment  ->  Plan"""
