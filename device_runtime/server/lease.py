"""The board's lease: one holder at a time, each with a fencing token larger than every one before.

The lock is a flock on DEVICE_DIR/lease.lock, which the kernel frees when its holder dies, however it dies.
DEVICE_DIR/lease.json says who holds it: {"version", "token", "holder", "pid", "since_unix_s"}.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Dict, Optional

from device_runtime.checked_json import OtherVersion, read_checked, write_checked
from device_runtime.protocol import BUSY, NO_LEASE, ProtocolError

LEASE_VERSION = 1


class Lease:
    """This process's claim on the board; ends with release() or with the process."""

    def __init__(self, device_dir: str) -> None:
        self.lock_path = os.path.join(device_dir, "lease.lock")
        self.info_path = os.path.join(device_dir, "lease.json")
        self.token: Optional[int] = None
        self._fd: Optional[int] = None

    def acquire(self, holder: str) -> int:
        """The new token, or the present one when already held; ProtocolError(BUSY) names the holder."""
        if self.token is not None:
            return self.token
        fd = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise self._busy() from None
        try:
            token: int = self._read().get("token", 0) + 1
            info = {"token": token, "holder": holder, "pid": os.getpid(), "since_unix_s": round(time.time())}
            write_checked(self.info_path, {"version": LEASE_VERSION, **info})
        except OSError:
            os.close(fd)  # nobody holds what could not be written down
            raise
        self._fd, self.token = fd, token
        return token

    def require(self) -> int:
        """The token, when this process still is the holder; ProtocolError(NO_LEASE) otherwise."""
        if self.token is None:
            raise ProtocolError(NO_LEASE, "this call needs the board's lease; call 'lease' first")
        found = self._read().get("token")
        if found != self.token:
            text = f"the lease was lost: this connection's token is {self.token}, the board's is {found}"
            self.release()
            raise ProtocolError(NO_LEASE, text)
        return self.token

    def release(self) -> None:
        """Let others in; nothing happens when not held."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self.token = None, None

    def _busy(self) -> ProtocolError:
        info = self._read()
        holder, pid = info.get("holder", "somebody"), info.get("pid", "unknown")
        since_s = max(0, round(time.time()) - info.get("since_unix_s", round(time.time())))
        return ProtocolError(BUSY, f"held by {holder} (process {pid} on the board) for {since_s} s", info)

    def _read(self) -> Dict[str, Any]:
        try:
            return read_checked(self.info_path, LEASE_VERSION)
        except FileNotFoundError:
            return {}
        except (ValueError, OtherVersion):
            # The last token is unknown; the time in seconds is above any count of leases.
            return {"token": round(time.time())}
