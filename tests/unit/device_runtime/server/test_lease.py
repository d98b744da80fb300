"""The lease: one holder, growing tokens, freed by death."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from device_runtime.checked_json import write_checked
from device_runtime.protocol import BUSY, NO_LEASE, ProtocolError
from device_runtime.server.lease import LEASE_VERSION, Lease


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = Lease(str(tmp_path)), Lease(str(tmp_path))
    token = first.acquire("alice")
    assert first.acquire("alice") == first.require() == token
    with pytest.raises(ProtocolError, match=rf"held by alice \(process {os.getpid()} on the board\)") as busy:
        second.acquire("bob")
    assert (busy.value.code, busy.value.details["holder"]) == (BUSY, "alice")
    with pytest.raises(ProtocolError) as without:
        second.require()
    assert without.value.code == NO_LEASE
    first.release()
    first.release()
    assert second.acquire("bob") > token


def test_a_dead_holder_frees_it(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        Lease(str(tmp_path)).acquire("doomed")
        lease = Lease(
            str(tmp_path)
        )  # closing the first, unreferenced, does not free it: it is no file object
        os.write(tell, b"x")
        signal.pause()
        lease.release()
    os.read(ready, 1)
    lease = Lease(str(tmp_path))
    with pytest.raises(ProtocolError, match="held by doomed"):
        lease.acquire("next")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert lease.acquire("next") == 2


def test_a_stale_token_is_stopped(tmp_path: Path) -> None:
    lease = Lease(str(tmp_path))
    lease.acquire("alice")
    write_checked(str(tmp_path / "lease.json"), {"version": LEASE_VERSION, "token": 7})
    with pytest.raises(ProtocolError, match="token is 1, the board's is 7"):
        lease.require()


@pytest.mark.parametrize(
    "content", ["", "not json", "[]", "\xff", "[" * 100_000, '{"token": "7", "version": 1}']
)
def test_a_damaged_file_does_not_bring_old_tokens_back(tmp_path: Path, content: str) -> None:
    old = Lease(str(tmp_path))
    for _ in range(5):
        token = old.acquire("alice")
        old.release()
    (tmp_path / "lease.json").write_text(content, encoding="latin-1")
    assert Lease(str(tmp_path)).acquire("bob") > token


def test_a_lease_that_cannot_be_written_down_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "lease.json.part").symlink_to("/dev/full")
    lease = Lease(str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        lease.acquire("alice")
    assert lease.token is None
    assert os.listdir(tmp_path) == ["lease.lock"]
    assert Lease(str(tmp_path)).acquire("bob") == 1
