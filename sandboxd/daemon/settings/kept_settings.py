"""Last good content of settings files, for the next daemon: a file may be broken by the time that it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sandboxd.settings.layer import Layer, parse_layer
from sandboxd.settings.origins import Source
from sandboxd_client.records import dataclass


@dataclass(frozen=True, slots=True)
class KeptFile:
    """Last good content of a file, and what it may do."""

    path: str
    source: Source
    content: bytes
    may_widen: bool
    distrust: str


@dataclass(frozen=True, slots=True)
class KeptSettings:
    """Files of one project that had content, or of the daemon when `directory` is None."""

    directory: str | None
    files: tuple[KeptFile, ...]

    def layers(self) -> tuple[Layer, ...]:
        return tuple(map(_layer, self.files))


def _layer(file: KeptFile) -> Layer:
    layer = parse_layer(file.content, file.source, file.path, may_widen=file.may_widen, distrust=file.distrust)
    return replace(layer, content=file.content)


def kept_settings(directory: str | None, layers: Iterable[Layer]) -> KeptSettings:
    """Return the content of layers that come from files."""
    files = (
        KeptFile(layer.file, layer.source, layer.content, layer.may_widen, layer.distrust)
        for layer in layers
        if layer.file is not None and layer.content
    )
    return KeptSettings(directory, tuple(files))
