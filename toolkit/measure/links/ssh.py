"""A runtime over SSH: the archive is uploaded, then started. The one file that uses paramiko."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from boards.description import Link
from device_runtime.protocol import FRAME_DEADLINE_S
from toolkit.errors import BoardUnreachable, InputError
from toolkit.measure.archive import archive_name, runtime_archive
from toolkit.measure.links.transport import WORDS_BYTES, Transport

if TYPE_CHECKING:
    import paramiko

READ_BYTES = 1 << 18
STDERR_BYTES = 1 << 22  # above the window of an SSH channel, so that one read takes all that is there
KEEPALIVE_S = 15


class SshTransport(Transport):
    """The channel of a remote command; `client` lives as long."""

    def __init__(self, client: paramiko.SSHClient, channel: paramiko.Channel, where: str) -> None:
        self.where = where
        self._client, self._channel = client, channel
        self._printed = b""

    @classmethod
    def open(cls, link: Link, cache_dir: Path) -> Self:
        """See Transport; the archive is kept in the board's device folder."""
        import paramiko

        where = link.address
        client = connect_ssh(link)
        try:
            with client.open_sftp() as sftp:
                sftp.get_channel().settimeout(FRAME_DEADLINE_S)
                device_dir = remote_path(sftp, link.device_dir)
                archive = f"{device_dir}/{archive_name()}"
                upload(sftp, archive, runtime_archive())
            command = [link.python or "python3", archive, "--device-dir", device_dir]
            transport = client.get_transport()
            assert transport is not None  # connect_ssh gives a connected client
            transport.set_keepalive(KEEPALIVE_S)
            channel = transport.open_session(timeout=link.connect_timeout_s)
            channel.exec_command(f"exec {shlex.join(command)}")
        except (OSError, EOFError, paramiko.SSHException, paramiko.SFTPError) as error:
            client.close()
            raise BoardUnreachable(f"The runtime cannot be put on {where} and started: {error}") from error
        return cls(client, channel, where)

    @staticmethod
    def remedy(link: Link) -> str:
        trial = f"ssh -p {link.port} {link.login} python3 --version"
        return f"make `{trial}` work without a password, then try again"

    def read(self, timeout_s: float | None) -> bytes:
        """Some bytes; b"" at the end. Reads standard error, too: its full window would block the runtime."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._take_words()
            left_s = 1.0 if deadline_s is None else min(1.0, deadline_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError(f"{self.where} did not answer within {timeout_s:g} s")
            self._channel.settimeout(left_s)
            try:
                return bytes(self._channel.recv(READ_BYTES))
            except TimeoutError:
                continue

    def write(self, data: bytes) -> None:
        """Write all of it; TimeoutError when no byte goes out within FRAME_DEADLINE_S."""
        self._channel.settimeout(FRAME_DEADLINE_S)
        self._channel.sendall(data)

    def close(self) -> None:
        """Close the channel, which ends the runtime, and the connection."""
        self._channel.close()
        self._client.close()

    def last_words(self) -> str:
        """The last of the runtime's standard error."""
        deadline_s = time.monotonic() + 1.0
        while not self._channel.exit_status_ready() and time.monotonic() < deadline_s:
            time.sleep(0.01)  # it prints, then ends; both arrive in that order
        self._take_words()
        return self._printed.decode(errors="replace").strip()

    def _take_words(self) -> None:
        """What has arrived of its standard error; as much as a window at once, however much there is."""
        if self._channel.recv_stderr_ready():
            self._printed = (self._printed + self._channel.recv_stderr(STDERR_BYTES))[-WORDS_BYTES:]


def connect_ssh(link: Link) -> paramiko.SSHClient:
    """A connected client; the host's key must be a known one. BoardUnreachable says how to remedy; InputError
    for a key file that is not there."""
    import paramiko

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # what matters is in the exceptions
    known_hosts = Path(link.known_hosts_file or "~/.ssh/known_hosts").expanduser()
    identity = Path(link.identity_file).expanduser() if link.identity_file else None
    for key, path in (("identity_file", identity), ("known_hosts_file", known_hosts)):
        if path is not None and getattr(link, key) and not path.is_file():
            raise InputError(f"link.{key} of the board file: expected a file, found none at {path}")
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    if known_hosts.is_file():
        client.load_host_keys(str(known_hosts))
    try:
        client.connect(
            link.host,
            port=link.port,
            username=link.user or None,
            key_filename=None if identity is None else str(identity),
            allow_agent=identity is None,
            look_for_keys=identity is None,
            timeout=link.connect_timeout_s,
            banner_timeout=link.connect_timeout_s,
            auth_timeout=link.connect_timeout_s,
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        raise BoardUnreachable(_why_not_connected(link, known_hosts, error)) from error
    return client


def _why_not_connected(link: Link, known_hosts: Path, error: Exception) -> str:
    """Why the connection failed, and what to do."""
    import paramiko

    where = f"{link.host}:{link.port}"
    name = link.host if link.port == 22 else f"[{link.host}]:{link.port}"
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"{where} shows another host key than {known_hosts} has: {error}. If the board was set up anew, "
            f"forget the old one: ssh-keygen -f {known_hosts} -R '{name}'"
        )
    if isinstance(error, paramiko.AuthenticationException):
        who, what = link.user or "this user", link.identity_file or "the keys of this user"
        return (
            f"{where} lets nobody in as {who} with {what}: {error} "
            f"Run: ssh-copy-id -p {link.port} {link.login}"
        )
    if "not found in known_hosts" in str(error):
        return (
            f"{where} is not among the known hosts of {known_hosts}. Compare its key with the board's, "
            f"then run: ssh-keyscan -p {link.port} {link.host} >> {known_hosts}"
        )
    if "No authentication methods available" in str(error):  # paramiko's words when it has no key to offer
        return (
            f"there is no SSH key here to log in to {where} with: none in ~/.ssh, none in an agent, and the "
            "board file names no link.identity_file. Run: ssh-keygen -t ed25519 && "
            f"ssh-copy-id -p {link.port} {link.login}"
        )
    if isinstance(error, socket.gaierror):
        return (
            f"the name {link.host!r} leads to no address: {error.strerror}. Check its spelling, "
            "or write the board's address."
        )
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError) and all(
        isinstance(cause, ConnectionRefusedError) for cause in error.errors.values()
    ):
        return (
            f"{link.host} is on, but nothing listens on port {link.port}. Start sshd there "
            "(sudo systemctl enable --now ssh), or name its port: NAME@USER@HOST:PORT."
        )
    return (
        f"{where} does not answer over SSH: {error}. Check that it is on, its address, and that sshd runs "
        "there."
    )


def remote_path(sftp: paramiko.SFTPClient, path: str) -> str:
    """An absolute path on the board; a leading ~ is the home folder there."""
    home = sftp.normalize(".")
    return f"{home}/{path.removeprefix('~').lstrip('/')}" if path.startswith("~") else path


def upload(sftp: paramiko.SFTPClient, path: str, data: bytes) -> None:
    """Put a file whose name changes with its content; nothing to do when it is there, byte for byte."""
    try:
        with sftp.open(path, "rb") as file:
            file.prefetch(len(data))
            if file.read(len(data) + 1) == data:
                return
    except FileNotFoundError:
        _make_folders(sftp, os.path.dirname(path))
    part = f"{path}.{os.getpid()}.part"
    with sftp.open(part, "wb") as file:
        file.set_pipelined(True)
        file.write(data)
    sftp.posix_rename(part, path)


def _make_folders(sftp: paramiko.SFTPClient, path: str) -> None:
    try:
        sftp.stat(path)
    except FileNotFoundError:
        if os.path.dirname(path) == path:
            raise
        _make_folders(sftp, os.path.dirname(path))
        sftp.mkdir(path, 0o700)
