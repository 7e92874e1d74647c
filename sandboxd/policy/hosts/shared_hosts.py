"""Hosts whose very purpose is to take what strangers send: allowing one lets a program send anything to anybody. Pure.

Only for the text of a question; nothing is decided by it. Names below these count too.
"""

from __future__ import annotations

from sandboxd.policy.hosts.host_patterns import Host

# what it is for: names
SHARED: dict[str, tuple[str, ...]] = {
    "takes text from anybody and shows it to anybody": (
        "pastebin.com", "paste.ee", "dpaste.com", "dpaste.org", "hastebin.com", "ix.io", "sprunge.us", "termbin.com",
        "rentry.co", "gist.github.com", "0bin.net", "privatebin.net", "ghostbin.com", "controlc.com",
    ),
    "takes files from anybody": (
        "transfer.sh", "file.io", "0x0.st", "catbox.moe", "gofile.io", "temp.sh", "bashupload.com", "wetransfer.com",
        "anonfiles.com", "tmpfiles.org", "uguu.se", "oshi.at", "filebin.net", "mega.nz",
    ),
    "shows whatever is sent to whoever made the address": (
        "webhook.site", "requestbin.com", "pipedream.net", "requestcatcher.com", "beeceptor.com", "hookbin.com",
        "interact.sh", "oast.fun", "oast.pro", "oast.live", "burpcollaborator.net", "canarytokens.com", "postb.in",
        "hooks.slack.com", "discord.com", "api.telegram.org",
    ),
    "leads to a computer that anybody may have connected": (
        "ngrok.io", "ngrok.app", "ngrok-free.app", "trycloudflare.com", "loca.lt", "serveo.net", "localhost.run",
        "pinggy.link", "bore.pub",
    ),
}  # fmt: skip

_PURPOSE = {name: purpose for purpose, names in SHARED.items() for name in names}


def purpose_of(host: Host) -> str:
    """What the host is for, when that is to take things from anybody; empty otherwise."""
    name = host.name
    while name:
        if name in _PURPOSE:
            return _PURPOSE[name]
        _, _, name = name.partition(".")
    return ""
