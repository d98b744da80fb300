"""The recorded state of the slots: what is in state.json, checked before it is believed."""

from __future__ import annotations

from typing import Any, Dict

from device_runtime.checked_json import OtherVersion, read_checked, write_checked
from device_runtime.protocol import REFUSED, ProtocolError

STATE_VERSION = 2

Plain = Dict[str, Any]


def empty_state() -> Plain:
    """Before the first bundle. Slots are named by bundle ids, "" for none.

    `counters` has the highest counter that was committed under each bundle's name; `permitted` is the older
    bundle that a trusted signer permits, until it is committed.
    """
    return {
        "version": STATE_VERSION,
        "current": "",
        "committed": "",
        "previous": "",
        "tested": [],
        "failed_starts": 0,
        "last_failure": None,
        "counters": {},
        "permitted": "",
    }


def read_state(path: str) -> Plain:
    """The state in a file; FileNotFoundError, ValueError where it is damaged, ProtocolError(REFUSED)."""
    try:
        state = read_checked(path, STATE_VERSION)
    except OtherVersion as error:
        raise ProtocolError(
            REFUSED,
            f"{path} has version {error}, expected {STATE_VERSION}; use the tool that wrote it, or remove "
            "the slots folder and flash again",
        ) from None
    if set(state) != set(empty_state()):
        raise ValueError("it has other entries than a state")
    return state


def write_state(path: str, state: Plain) -> None:
    """Replace the file, durably."""
    write_checked(path, state)
