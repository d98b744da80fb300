"""An OpenSSH server on this machine, with keys of its own, as the link to a board."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boards.description import Link

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")

CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
"""


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def ssh_server(folder: Path) -> Iterator[Link]:
    """A server that lets this user in with one key."""
    port = free_port()
    host_key = make_key(folder / "host_key")
    make_key(folder / "user_key")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "config").write_text(CONFIG.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root insists on it
    assert SSHD is not None
    command = [SSHD, "-D", "-e", "-f", str(folder / "config")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port)
            yield Link(
                kind="ssh",
                host="127.0.0.1",
                port=port,
                user=getpass.getuser(),
                python=shutil.which("python3") or "python3",
                identity_file=str(folder / "user_key"),
                known_hosts_file=str(folder / "known_hosts"),
            )
        finally:
            server.kill()


def wait_for(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, "sshd does not listen"
            time.sleep(0.02)
