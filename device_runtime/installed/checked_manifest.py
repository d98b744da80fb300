"""A bundle's manifest as the board reads it: every entry that anything here acts on is checked first.

A signature says who wrote a manifest, not that it is sound: what a trusted signer's tool got wrong must not
end the runtime, and must not name a file outside the slot. `parse_manifest` is the door.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Tuple

from device_runtime.protocol import DRIVERS, DTYPE_BYTES, MAX_BUFFER_BYTES, REFUSED, ProtocolError
from device_runtime.wire.entries import take, take_choice, take_sha, unexpected

BUNDLE_FORMAT = 4
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
MAX_MANIFEST_BYTES = 1 << 24
MAX_COUNTER = (1 << 53) - 1  # what every JSON reader keeps exactly
MAX_PARTS = 4096
MAX_TEXT = 1000
MAX_DIGITS = 20  # of an integer: more than any of 64 bits has
PART_PATH = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,99}(/[a-z0-9][a-z0-9_.+-]{0,99}){0,3}")
CAPABILITY = re.compile(r"sm_[0-9]{2,3}")
SIZES = ("arena_bytes", "workspace_bytes", "parameters_bytes")

Plain = Dict[str, Any]


def parse_manifest(data: bytes) -> Plain:
    """A manifest whose signature or hash holds; ProtocolError(REFUSED) when this runtime cannot use it."""
    try:
        manifest = json.loads(
            data.decode("utf-8"), parse_int=_integer, parse_constant=_no_constant, object_pairs_hook=_distinct
        )
    except (ValueError, RecursionError) as error:
        raise _malformed(f"it is no JSON that can be read ({error})") from None
    if not isinstance(manifest, dict):
        raise _malformed(f"expected a map, found {type(manifest).__name__}")
    if manifest.get("format") != BUNDLE_FORMAT:
        raise ProtocolError(
            REFUSED,
            f"the bundle has format {manifest.get('format')!r:.40}, this runtime reads {BUNDLE_FORMAT}: tune "
            "the model again with the version of the tool that flashes it (recorded trials are not repeated)",
        )
    try:
        _check(manifest)
    except ProtocolError as error:
        raise _malformed(error.text) from None
    return manifest


def _check(manifest: Plain) -> None:
    _text(manifest.get("name"), "'name'")
    take(manifest, "counter", int, 0, MAX_COUNTER)
    compatibility = take(manifest, "compatibility", dict)
    for entry in [*take(compatibility, "boards", list), *take(compatibility, "machines", list)]:
        _text(entry, "'compatibility'")
    sizes = _part_sizes(_maps(manifest, "parts"))
    golden = take(manifest, "golden", dict)
    take(golden, "rtol", float, 0.0, 1.0)
    for role in ("inputs", "outputs"):
        specs = [_tensor_bytes(spec) for spec in _maps(manifest, role)]
        files = [_size_of(sizes, path) for path in take(golden, role, list)]
        if specs != files:
            raise unexpected(f"'golden.{role}'", f"files of {specs} bytes", files)
    variants = _maps(manifest, "variants")
    if not variants:
        raise unexpected("'variants'", "at least one", variants)
    for variant in variants:
        _check_variant(variant, sizes)


def _part_sizes(parts: List[Plain]) -> Dict[str, int]:
    """Bytes of each part, by path."""
    if len(parts) > MAX_PARTS:
        raise unexpected("'parts'", f"at most {MAX_PARTS}", len(parts))
    sizes: Dict[str, int] = {}
    last = ""
    for part in parts:
        path = take(part, "path", str)
        if not PART_PATH.fullmatch(path) or path in (MANIFEST, SIGNATURE):
            raise unexpected("a part's path", "lower-case names with / between them", path)
        if path <= last:
            raise unexpected("'parts'", "each path once, in order", path)
        last = path
        take_sha(part, "sha256")
        sizes[path] = take(part, "size_bytes", int, 0, MAX_BUFFER_BYTES)
    for path in sizes:
        folders = path.split("/")[:-1]
        if any("/".join(folders[:count]) in sizes for count in range(1, len(folders) + 1)):
            raise unexpected("'parts'", "no file that is a folder, too", path)
    return sizes


def _check_variant(variant: Plain, sizes: Dict[str, int]) -> None:
    kind = take_choice(variant, "kind", DRIVERS)
    _text(variant.get("target"), "'target'")
    take(variant, "threads", int, 1, 1 << 20)
    for name in SIZES:
        take(variant, name, int, 0, MAX_BUFFER_BYTES)
    for name in ("library", "header", "plan") if kind == "cpu" else ("model", "plan"):
        _size_of(sizes, variant.get(name))
    if kind == "cpu":
        _text(variant.get("triple"), "'triple'")
        return
    _text(variant.get("device"), "'device'")
    take(variant, "threads_per_block", int, 1, 1 << 20)
    if kind == "cuda" and not CAPABILITY.fullmatch(take(variant, "compute_capability", str)):
        raise unexpected("'compute_capability'", "a name such as sm_53", variant["compute_capability"])


def _tensor_bytes(spec: Plain) -> int:
    """Bytes of a graph input or output."""
    _text(spec.get("name"), "a tensor's name")
    count = DTYPE_BYTES[take_choice(spec, "dtype", tuple(DTYPE_BYTES))]
    for extent in take(spec, "shape", list):
        if type(extent) is not int or extent < 0 or count * extent > MAX_BUFFER_BYTES:
            raise unexpected("'shape'", f"integers, for at most {MAX_BUFFER_BYTES} bytes", spec["shape"])
        count *= extent
    return count


def _maps(plain: Plain, name: str) -> List[Plain]:
    """Entry `name` as a list of maps."""
    entries: List[Plain] = take(plain, name, list)
    for entry in entries:
        if not isinstance(entry, dict):
            raise unexpected(f"'{name}'", "maps", entry)
    return entries


def _size_of(sizes: Dict[str, int], path: object) -> int:
    if not isinstance(path, str) or path not in sizes:
        raise unexpected("a file of the bundle", "a path among its parts", path)
    return sizes[path]


def _text(value: object, where: str) -> None:
    """ProtocolError unless it is text that can be shown to people."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise unexpected(where, f"at most {MAX_TEXT} printable characters", value)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _distinct(pairs: List[Tuple[str, Any]]) -> Plain:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _malformed(what: str) -> ProtocolError:
    return ProtocolError(REFUSED, f"the bundle's manifest is malformed: {what:.300}; pack the bundle again")
