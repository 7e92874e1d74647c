"""Hosts that take data from unknown senders, so that programs could leak it.

They shape the text of a question, never a decision. Names below them count too."""

from __future__ import annotations

from sandboxd.policy.hosts.host_patterns import Host

# purpose: names
SHARED: dict[str, tuple[str, ...]] = {
    "takes text from any sender and publishes it": (
        "pastebin.com", "paste.ee", "dpaste.com", "dpaste.org", "hastebin.com", "ix.io", "sprunge.us", "termbin.com",
        "rentry.co", "gist.github.com", "0bin.net", "privatebin.net", "ghostbin.com", "controlc.com",
    ),
    "takes files from any sender": (
        "transfer.sh", "file.io", "0x0.st", "catbox.moe", "gofile.io", "temp.sh", "bashupload.com", "wetransfer.com",
        "anonfiles.com", "tmpfiles.org", "uguu.se", "oshi.at", "filebin.net", "mega.nz",
    ),
    "shows what is sent to the maker of the address": (
        "webhook.site", "requestbin.com", "pipedream.net", "requestcatcher.com", "beeceptor.com", "hookbin.com",
        "interact.sh", "oast.fun", "oast.pro", "oast.live", "burpcollaborator.net", "canarytokens.com", "postb.in",
        "hooks.slack.com", "discord.com", "api.telegram.org",
    ),
    "leads to a computer of an unknown owner": (
        "ngrok.io", "ngrok.app", "ngrok-free.app", "trycloudflare.com", "loca.lt", "serveo.net", "localhost.run",
        "pinggy.link", "bore.pub",
    ),
}  # fmt: skip

_PURPOSE = {name: purpose for purpose, names in SHARED.items() for name in names}


def purpose_of(host: Host) -> str:
    """Return the purpose of a host that takes data from any sender, else ""."""
    name = host.name
    while name:
        if name in _PURPOSE:
            return _PURPOSE[name]
        _, _, name = name.partition(".")
    return ""
