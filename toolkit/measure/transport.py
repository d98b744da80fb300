"""Start a device runtime, or find a running one, and speak bytes with it. The one file that uses paramiko.

Enter through open_transport(): the link's kind decides between a local subprocess, SSH, the emulator and TCP.
What leaves is a Transport, the host's end of a protocol.Connection, that can also say what the other side
printed when it is gone.
"""

from __future__ import annotations

import logging
import os
import select
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from boards.board import Link
from boards.files import kept_file
from device_runtime.protocol import (
    FRAME_DEADLINE_S,
    Credentials,
    ProtocolError,
    Stream,
    TlsStream,
    read_credentials,
)
from toolkit.errors import BoardUnreachable, InputError
from toolkit.measure import emulation
from toolkit.measure.archive import archive_name, runtime_archive

if TYPE_CHECKING:
    import paramiko

DEFAULT_CACHE_DIR = Path("~/.cache/tune-for-board").expanduser()
READ_BYTES = 1 << 18
STDERR_BYTES = 1 << 22  # above the window of an SSH channel, so that one read takes all that is there
WORDS_BYTES = 2000  # of what the other side printed last
END_S = 5.0  # how long a runtime may take to end once its input is closed
KEEPALIVE_S = 15


class Transport(Stream):
    """A stream to a runtime; `where` names it in messages."""

    where: str
    silence = "it needs Python 3.8 or newer and a folder to write to"
    """Why a runtime may have ended without a word."""

    def last_words(self) -> str:
        """The end of what the other side printed, "" when nothing."""
        return ""


def open_transport(link: Link, cache_dir: Path | None = None) -> Transport:
    """Reach the runtime of a link. BoardUnreachable says what was tried and what to do."""
    cache_dir = cache_dir or DEFAULT_CACHE_DIR
    match link.kind:
        case "local":
            return _open_local([link.python or sys.executable], link, cache_dir, "this machine")
        case "emulator":
            paths = emulation.find(cache_dir / "emulation") or emulation.find()
            if paths is None:
                raise BoardUnreachable(
                    "The emulation is not installed: expected qemu-aarch64-static and an aarch64 Python. "
                    "Run `make emulation`."
                )
            return _open_local(paths.command(link.command), link, cache_dir, "the emulator")
        case "ssh":
            return _open_ssh(link)
        case "tcp":
            return _open_tcp(link)


# ------------------------------------------------------------------------------------- local, emulator


class ProcessTransport(Transport):
    """Pipes to a subprocess in a session of its own, so that Ctrl-C reaches only the host's side."""

    def __init__(self, command: Sequence[str], where: str) -> None:
        self.where = where
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the transport
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            start_new_session=True,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._output, select.POLLIN)
        self._writable.register(self._input, select.POLLOUT)

    @property
    def pid(self) -> int:
        """Process id of the runtime."""
        return self._process.pid

    def read(self, timeout_s: float | None) -> bytes:
        """Some bytes; b"" at the end."""
        if self._output.closed:
            return b""
        if not self._readable.poll(None if timeout_s is None else timeout_s * 1e3):
            raise TimeoutError(f"{self.where} did not answer within {timeout_s:g} s")
        return os.read(self._output.fileno(), READ_BYTES)

    def write(self, data: bytes) -> None:
        """All of it, within FRAME_DEADLINE_S; TimeoutError."""
        if self._input.closed:
            raise BrokenPipeError("the session is closed")
        view, deadline_s = memoryview(data), time.monotonic() + FRAME_DEADLINE_S
        while view:
            if not self._writable.poll(max(0.0, deadline_s - time.monotonic()) * 1e3):
                raise TimeoutError(f"{self.where} took no request within {FRAME_DEADLINE_S:g} s")
            view = view[os.write(self._input.fileno(), view) :]

    def close(self) -> None:
        """The runtime ends when its input does; one that does not is killed."""
        if self._input.closed:
            return
        self._input.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._printed.close()

    def last_words(self) -> str:
        """The last of the runtime's standard error."""
        if self._printed.closed:
            return ""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - WORDS_BYTES))
        return self._printed.read().decode(errors="replace").strip()


def _open_local(command: Sequence[str], link: Link, cache_dir: Path, where: str) -> Transport:
    archive = cache_dir / archive_name()
    device_dir = Path(link.device_dir).expanduser()
    try:
        kept_file(archive, runtime_archive())
        return ProcessTransport([*command, str(archive), "--device-dir", str(device_dir)], where)
    except OSError as error:
        raise BoardUnreachable(f"The runtime on {where} does not start: {error}") from error


# ------------------------------------------------------------------------------------------------- ssh


class SshTransport(Transport):
    """The channel of a remote command; `client` lives as long."""

    def __init__(self, client: paramiko.SSHClient, channel: paramiko.Channel, where: str) -> None:
        self.where = where
        self._client, self._channel = client, channel
        self._printed = b""

    def read(self, timeout_s: float | None) -> bytes:
        """Some bytes; b"" at the end. Takes the other side's standard error out of its way."""
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
        """All of it; TimeoutError when nothing of it goes out within FRAME_DEADLINE_S."""
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


def _open_ssh(link: Link) -> Transport:
    where = f"{link.user + '@' if link.user else ''}{link.host}:{link.port}"
    client = connect_ssh(link)
    import paramiko

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
    return SshTransport(client, channel, where)


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
    """What failed, and the remedy."""
    import paramiko

    where, user = f"{link.host}:{link.port}", f"{link.user}@" if link.user else ""
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
            f"Run: ssh-copy-id -p {link.port} {user}{link.host}"
        )
    if "not found in known_hosts" in str(error):
        return (
            f"{where} is not among the known hosts of {known_hosts}. Compare its key with the board's, "
            f"then run: ssh-keyscan -p {link.port} {link.host} >> {known_hosts}"
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


# ------------------------------------------------------------------------------------------------- tcp


class SocketTransport(TlsStream, Transport):
    """A TLS connection to a runtime that somebody started with --listen."""

    silence = (
        "it does not accept this host's certificate, or was stopped. Check that both sides have the "
        "credentials of one `toolkit runtime archive`"
    )

    def __init__(self, peer: ssl.SSLSocket, where: str) -> None:
        super().__init__(peer)
        self.where = where


def _open_tcp(link: Link) -> Transport:
    """Connect, and prove to each other who one is, before the board gets a word in."""
    where, credentials = f"{link.host}:{link.port}", tls_credentials(link)
    try:
        peer = socket.create_connection((link.host, link.port), timeout=link.connect_timeout_s)
    except OSError as error:
        raise BoardUnreachable(
            f"No runtime listens on {where}: {error}. Start it on the board: python3 device_runtime.pyz "
            f"--device-dir DIR --listen 0.0.0.0:{link.port} --tls device_runtime.board.pem "
            "(`toolkit runtime archive` writes both files)"
        ) from error
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = credentials.context.wrap_socket(peer)
    except OSError as error:
        peer.close()
        raise BoardUnreachable(_why_not_secured(where, link, error)) from error
    if not credentials.accept(secured):
        secured.close()
        raise BoardUnreachable(_other_certificate(where, link))
    return SocketTransport(secured, where)


def _why_not_secured(where: str, link: Link, error: OSError) -> str:
    """What broke a TLS handshake, and the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _other_certificate(where, link)
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return (
            f"{where} closed the connection before it was secured: so many others try to connect that it "
            "dropped this one, or it is no runtime. Try again"
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error):
        return f"{where} refused the connection: {SocketTransport.silence}"
    if isinstance(error, TimeoutError):
        return f"{where} did not complete the TLS handshake within {link.connect_timeout_s:g} s; try again"
    return (
        f"{where} does not speak TLS as a runtime of this version does: {error}. Start the one there that "
        "`toolkit runtime archive` writes"
    )


def _other_certificate(where: str, link: Link) -> str:
    return (
        f"{where} shows another certificate than the board's in {link.tls_file}: it may not be the board. If "
        "the board was given new credentials, name the host's file that was made with them as link.tls_file"
    )


def tls_credentials(link: Link) -> Credentials:
    """This host's credentials for a TCP link. InputError when its file cannot be used."""
    if not link.tls_file:
        raise InputError("link.kind tcp: expected link.tls_file in the board file, found none")
    path = Path(link.tls_file).expanduser()
    try:
        return read_credentials(str(path), server=False)
    except OSError as error:
        raise InputError(
            f"link.tls_file {path}: {error.strerror or error}; `toolkit runtime archive` makes it"
        ) from error
    except ProtocolError as error:
        raise InputError(f"link.tls_file {error}") from error
