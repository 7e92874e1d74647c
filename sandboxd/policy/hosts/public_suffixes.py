"""Suffixes below which unrelated owners register names (`com`, `github.io`).

The data is the Public Suffix List as shipped in the `publicsuffixlist` package (MPL-2.0, a weekly release, no network
at run time): a hand-kept table would miss most of its 1,500 top-level and 6,000 further suffixes. It is loaded with
the first wildcard rule, since that takes 30 ms."""

from __future__ import annotations

from functools import cache

from publicsuffixlist import PublicSuffixList


@cache
def _registry_suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=False, only_icann=True)


@cache
def _all_suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=False)


def is_public_suffix(name: str) -> bool:
    """Return whether a registry runs `name`; reserved names are not listed."""
    return bool(_registry_suffixes().is_public(name))


def registrable_domain(name: str) -> str:
    """Return the domain that one owner has registered: the part of a name below its public suffix."""
    return _all_suffixes().privatesuffix(name) or ".".join(name.split(".")[-2:])


def is_shared_suffix(name: str) -> bool:
    """Return whether `name` is listed, suffixes of companies included."""
    return bool(_all_suffixes().is_public(name))
