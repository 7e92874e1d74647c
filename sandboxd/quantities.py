"""Sizes and durations as settings and options have them: `2G`, `1.5GiB`, `10m`, `1h30m`. Pure."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LEAST_MEMORY = 16 << 20
LONGEST_S = 366 * 86400.0


def memory_size(value: str | int, least: int = LEAST_MEMORY) -> int:
    """Return the bytes of a size; units are powers of 1024. Raises ValueError with what is wanted."""
    found = _SIZE.fullmatch(str(value).strip())
    size = 0 if found is None else int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))
    if not least <= size < 1 << 62:
        raise ValueError(f"a size of at least {size_text(least)}, such as 512M or 2G")
    return size


def upload_size(value: str | int) -> int:
    """Return the bytes of a limit for what is sent. Raises ValueError with what is wanted."""
    return memory_size(value, least=1)


def duration_s(value: str | float) -> float:
    """Return the seconds of a duration; a number alone means seconds. Raises ValueError with what is wanted."""
    text = str(value).strip()
    parts = _PART.findall(text)
    seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
    is_whole = "".join(number + unit for number, unit in parts) == text
    if not is_whole or not (len(parts) == 1 or all(unit for _, unit in parts)) or not 0 < seconds <= LONGEST_S:
        raise ValueError("a duration such as 90s, 10m or 1h30m")
    return seconds


def size_text(size: int) -> str:
    """Return the shortest text of a size."""
    power = next(power for power in (3, 2, 1, 0) if size >= 1024**power or not power)
    return f"{size / 1024**power:g}" + " KMG"[power].strip()


def duration_text(seconds: float) -> str:
    """Return the shortest text of a duration."""
    unit = next((unit for unit in ("h", "m") if seconds >= _SECONDS[unit] and not seconds % _SECONDS[unit]), "s")
    return f"{seconds / _SECONDS[unit]:g}{unit}"
