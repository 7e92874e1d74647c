"""The table of slugs is consistent: programs depend on it."""

from __future__ import annotations

import re

from sandboxd_client.wire import codes


def test_slugs_are_unique_and_well_formed() -> None:
    slugs = [slug for slug, _, _ in codes.TABLE]
    assert len(slugs) == len(set(slugs))
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", slug) for slug in slugs)


def test_numbers_are_those_of_json_rpc_or_its_server_range() -> None:
    reserved = {-32700, -32600, -32601, -32602, -32603}
    assert all(number in reserved or -32099 <= number <= -32000 for _, number, _ in codes.TABLE)


def test_meanings_are_one_line_without_a_full_stop() -> None:
    assert all(meaning and "\n" not in meaning and not meaning.endswith(".") for _, _, meaning in codes.TABLE)


def test_an_unknown_slug_has_the_number_of_its_class() -> None:
    assert codes.number_of("parse_error") == -32700
    assert codes.number_of("never_heard_of", codes.HOST) == codes.HOST
    assert codes.number_of("never_heard_of") == codes.INTERNAL_ERROR
