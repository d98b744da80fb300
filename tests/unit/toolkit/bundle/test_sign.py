"""Signing on the host, checking on host and board and by OpenSSH itself: all agree."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from device_runtime.installed import signature as board
from device_runtime.protocol import sshsig
from toolkit.bundle import sign
from toolkit.errors import InputError, OutputError, VerificationError

MESSAGE = b'{"format":1}'


@pytest.fixture
def key(tmp_path: Path) -> sign.SigningKey:
    return sign.open_key(tmp_path / "config" / "signing_key")


def test_the_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = sign.key_file(tmp_path / "config")
    first = sign.open_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sign.open_key(path) == first
    assert path.with_name("signing_key.pub").read_text() == f"{first.public.line} tune-for-board\n"
    listed = subprocess.run(["ssh-keygen", "-l", "-f", path], capture_output=True, text=True, check=True)
    assert first.public.fingerprint in listed.stdout


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = sign.key_file(tmp_path)
    sign.open_key(path)
    path.chmod(0o644)
    with pytest.raises(InputError, match=r"has mode 0644, expected 0600.*chmod 600"):
        sign.open_key(path)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = sign.key_file(tmp_path)
    path.write_text("not a key")
    path.chmod(0o600)
    with pytest.raises(InputError, match="expected an OpenSSH Ed25519 key"):
        sign.open_key(path)


def test_a_key_of_a_kind_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = sign.key_file(tmp_path)
    sign.open_key(path)
    armour = path.read_bytes().split(b"\n")
    raw = base64.b64decode(b"".join(armour[1:-2])).replace(b"ssh-ed25519", b"ssh-ed25?19")
    path.write_bytes(b"\n".join([armour[0], base64.b64encode(raw), *armour[-2:]]))
    with pytest.raises(InputError, match="expected an OpenSSH Ed25519 key"):
        sign.open_key(path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", path], check=True)
    with pytest.raises(InputError, match=r"is a .*PrivateKey, expected Ed25519"):
        sign.open_key(path)


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        sign.open_key(tmp_path / "file" / "config" / "signing_key")


def test_a_key_made_by_ssh_keygen_signs_like_ssh_keygen(tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    (tmp_path / "message").write_bytes(MESSAGE)
    command = [
        "ssh-keygen",
        "-q",
        "-Y",
        "sign",
        "-f",
        path,
        "-n",
        sshsig.NAMESPACE.decode(),
        tmp_path / "message",
    ]
    subprocess.run(command, check=True)
    assert sign.open_key(path).sign(MESSAGE) == (tmp_path / "message.sig").read_bytes()


def test_host_board_and_openssh_accept_the_same_signature(key: sign.SigningKey, tmp_path: Path) -> None:
    signature = key.sign(MESSAGE)
    assert sign.verify(MESSAGE, signature, [key.public], "m") == key.public
    signers, file = _on_disk(tmp_path, key.public, signature)
    assert board.check(MESSAGE, str(file), str(signers)) == key.public.line
    assert _ssh_keygen(signers, file, MESSAGE) == 0
    assert _ssh_keygen(signers, file, MESSAGE + b" ") != 0


def test_signing_is_deterministic(key: sign.SigningKey) -> None:
    assert key.sign(MESSAGE) == key.sign(MESSAGE)


def test_every_flipped_byte_is_refused_on_host_and_board(key: sign.SigningKey) -> None:
    signature = key.sign(MESSAGE)
    for at in range(len(signature)):
        flipped = bytearray(signature)
        flipped[at] ^= 1 << at % 7
        with pytest.raises(VerificationError):
            sign.verify(MESSAGE, bytes(flipped), [key.public], "m")
        with pytest.raises(board.Refused):
            board.check_in_python(MESSAGE, bytes(flipped), [key.public.raw])


@pytest.mark.parametrize("change", [b"", b"x", b"\n", b"\0"])
def test_anything_after_or_instead_is_refused(key: sign.SigningKey, change: bytes) -> None:
    signature = key.sign(MESSAGE)
    for other in (change, signature + change if change else signature[:-1], change + signature[1:]):
        with pytest.raises(VerificationError, match="damaged or of another kind"):
            sign.verify(MESSAGE, other, [key.public], "m")
        with pytest.raises(board.Refused):
            board.check_in_python(MESSAGE, other, [key.public.raw])


def test_a_signer_nobody_trusts_is_named(key: sign.SigningKey, tmp_path: Path) -> None:
    stranger = sign.open_key(tmp_path / "stranger")
    signature = stranger.sign(MESSAGE)
    with pytest.raises(VerificationError, match="which is not trusted here") as caught:
        sign.verify(MESSAGE, signature, [key.public], "bundle x")
    assert stranger.public.fingerprint in str(caught.value)
    line = str(caught.value).split("the line '")[1].split("' to ")
    assert sign.read_allowed_signers(line[0]) == (stranger.public,)
    assert line[1].startswith(f"{sign.signers_file()}, ")
    signers, file = _on_disk(tmp_path, key.public, signature)
    with pytest.raises(board.Refused, match="is not in allowed_signers"):
        board.check(MESSAGE, str(file), str(signers))


def test_a_signature_for_another_purpose_is_refused(key: sign.SigningKey, tmp_path: Path) -> None:
    path = sign.key_file(tmp_path / "config")
    (tmp_path / "message").write_bytes(MESSAGE)
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", path, "-n", "git", tmp_path / "message"], check=True
    )
    signature = (tmp_path / "message.sig").read_bytes()
    with pytest.raises(VerificationError, match="tune-for-board-bundle"):
        sign.verify(MESSAGE, signature, [key.public], "m")
    with pytest.raises(board.Refused):
        board.check_in_python(MESSAGE, signature, [key.public.raw])


def test_the_board_needs_no_openssh(
    key: sign.SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    signers, file = _on_disk(tmp_path, key.public, key.sign(MESSAGE))
    assert board.check(MESSAGE, str(file), str(signers)) == key.public.line
    with pytest.raises(board.Refused, match="does not belong to this manifest"):
        board.check(MESSAGE + b" ", str(file), str(signers))


@pytest.mark.parametrize(
    ("says", "agrees"),
    [("unknown option -- Y", False), ("Could not verify signature.", None)],
)
def test_an_old_openssh_has_no_say_and_a_new_one_has(
    key: sign.SigningKey, tmp_path: Path, says: str, agrees: bool | None
) -> None:
    program = tmp_path / "ssh-keygen"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit 255\n")
    program.chmod(0o755)
    signers, file = _on_disk(tmp_path, key.public, key.sign(MESSAGE))
    if agrees is None:
        with pytest.raises(board.Refused, match="Could not verify"):
            board.check_with_ssh_keygen(str(program), MESSAGE, str(file), str(signers))
    else:
        assert board.check_with_ssh_keygen(str(program), MESSAGE, str(file), str(signers)) is agrees


def test_allowed_signers_are_read_alike(key: sign.SigningKey, tmp_path: Path) -> None:
    other = sign.open_key(tmp_path / "other").public
    text = (
        "# a comment\n\n"
        + key.public.allowed_signers_line
        + f"tune-for-board {other.line} no options\n"
        + f'tune-for-board namespaces="git" {other.line}\n'
        + f"somebody {other.line}\n"
        + "tune-for-board ssh-ed25519 AAAAnonsense\n"
        + "tune-for-board ssh-ed25519\n"
    )
    expected = (key.public, other)
    assert sign.read_allowed_signers(text) == expected
    signers, _ = _on_disk(tmp_path, key.public, b"")
    signers.write_text(text)
    assert board.trusted_keys(str(signers)) == [one.raw for one in expected]


def _on_disk(folder: Path, trusted: sign.PublicKey, signature: bytes) -> tuple[Path, Path]:
    signers, file = folder / "allowed_signers", folder / "manifest.json.sig"
    signers.write_text(trusted.allowed_signers_line)
    file.write_bytes(signature)
    return signers, file


def _ssh_keygen(signers: Path, signature: Path, message: bytes) -> int:
    command = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", sshsig.PRINCIPAL]
    command += ["-n", sshsig.NAMESPACE.decode(), "-s", signature]
    return subprocess.run(command, input=message, capture_output=True, check=False).returncode
