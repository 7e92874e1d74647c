"""Which names are suffixes that unrelated owners register under (`com`, `co.uk`, `github.io`).

The data is the Public Suffix List as shipped in the `publicsuffixlist` package (MPL-2.0, a weekly release, no network
at run time): a hand-kept table would miss most of its 1,500 top-level and 6,000 further suffixes. It is loaded with
the first wildcard rule, since that takes 30 ms.
"""

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
    """Whether `name` (canonical ASCII) is a suffix run by a registry: a top-level domain or one like `co.uk`. Names
    that are reserved or private (`test`, `internal`, `lan`) are not on the list."""
    return bool(_registry_suffixes().is_public(name))


def is_shared_suffix(name: str) -> bool:
    """Whether `name` is on the list at all, companies' suffixes such as `github.io` included."""
    return bool(_all_suffixes().is_public(name))
