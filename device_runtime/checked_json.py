"""Small JSON files of the board that say themselves whether they are whole: {..., "sha256": of the rest}.

A power cut, a full disk or bad storage leaves no file here that is read as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict

from device_runtime.content_store import write_atomically

MAX_BYTES = 1 << 20
DIGEST = "sha256"


def write_checked(path: str, content: Dict[str, Any]) -> None:
    """Replace the file, durably."""
    whole = {**content, DIGEST: digest_of(content)}
    write_atomically(path, (json.dumps(whole, sort_keys=True) + "\n").encode())


def read_checked(path: str, version: int) -> Dict[str, Any]:
    """What was written; FileNotFoundError. ValueError: damaged. OtherVersion: written by another tool."""
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES)
    try:
        content = json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"expected a map, found {type(content).__name__}")
    found = content.pop(DIGEST, None)
    if found not in (None, digest_of(content)):
        raise ValueError("its content does not have the hash that it names")
    if type(content.get("version")) is int and content["version"] != version:
        raise OtherVersion(content["version"])  # the first versions had no hash
    if found is None:
        raise ValueError("it names no hash of its content")
    return content


def digest_of(content: Dict[str, Any]) -> str:
    """SHA-256 in hex of the content as canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class OtherVersion(Exception):
    """The file is whole, but of another version, which is the argument."""
