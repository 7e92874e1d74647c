"""Sizes and durations as text."""

from __future__ import annotations

import pytest

from sandboxd.quantities import duration_s, duration_text, memory_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("64mb", 64 << 20), (1 << 30, 1 << 30)],
)
def test_a_size(text: str | int, size: int) -> None:
    assert memory_size(text) == memory_size(size_text(size)) == size


@pytest.mark.parametrize("text", ["", "G", "2X", "-1G", "1K", "15M", "2G2", "٣G", "1e30", "9999999999T", 0])
def test_no_size(text: str | int) -> None:
    with pytest.raises(ValueError, match="a size of"):
        memory_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), (2.5, 2.5), ("500ms", 0.5), ("1d", 86400), ("7", 7)],
)
def test_a_duration(text: str | float, seconds: float) -> None:
    assert duration_s(text) == duration_s(duration_text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "-5s", "0", "1h30", "5 10", "400d", "inf", "nan"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such"):
        duration_s(text)
