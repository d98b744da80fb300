"""Who signed a bundle's manifest: SSHSIG signatures (OpenSSH, PROTOCOL.sshsig) against allowed_signers.

`check` is the door. The signature must be byte for byte what `ssh-keygen -Y sign` would write for an Ed25519
key that the board trusts, so no flipped byte goes unseen. It is checked in plain Python and, where the board
has an OpenSSH that can (8.0 or newer), by `ssh-keygen -Y verify` as well: both must agree.
"""

import os
import shutil
import subprocess
from typing import List

from device_runtime.installed import ed25519
from device_runtime.wire import sshsig

MAX_SIGNATURE_BYTES = 1 << 12
MAX_SIGNERS_BYTES = 1 << 20
SSH_KEYGEN_TIMEOUT_S = 30.0
UNSUPPORTED = ("unknown option", "illegal option", "invalid option", "unrecognized option", "usage:")


class Refused(Exception):
    """The signature does not hold; the message says why."""


def check(manifest: bytes, signature_file: str, allowed_signers_file: str) -> str:
    """Return the signer's public key ("ssh-ed25519 AAAA...") or raise Refused.

    `signature_file` is read once for the check in Python, and again by ssh-keygen where there is one.
    """
    trusted = trusted_keys(allowed_signers_file)
    try:
        with open(signature_file, "rb") as stream:
            signature = stream.read(MAX_SIGNATURE_BYTES)
    except OSError as error:
        raise Refused("{} cannot be read: {}".format(signature_file, error.strerror)) from None
    key = check_in_python(manifest, signature, trusted)
    program = shutil.which("ssh-keygen")
    if program is not None:
        check_with_ssh_keygen(program, manifest, signature_file, allowed_signers_file)
    return sshsig.public_line(key)


def check_in_python(manifest: bytes, signature: bytes, trusted: List[bytes]) -> bytes:
    """Return the raw public key of the trusted signer, or raise Refused."""
    parts = sshsig.decode(signature)
    if parts is None:
        raise Refused("it is not in the exact form that ssh-keygen writes for an Ed25519 key and a bundle")
    key, raw = parts
    if key not in trusted:
        line = sshsig.public_line(key)
        raise Refused(f"its signer {line} is not in allowed_signers; if it should be, add it there")
    if not ed25519.verify(key, sshsig.signed_data(manifest), raw):
        raise Refused("it does not belong to this manifest")
    return key


def check_with_ssh_keygen(program: str, manifest: bytes, signature_file: str, allowed_file: str) -> bool:
    """True when OpenSSH agrees, False when it is too old to say; raises Refused when it disagrees."""
    command = [program, "-Y", "verify", "-f", allowed_file, "-I", sshsig.PRINCIPAL]
    command += ["-n", sshsig.NAMESPACE.decode(), "-s", signature_file]
    try:
        done = subprocess.run(
            command,
            check=False,
            input=manifest,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SSH_KEYGEN_TIMEOUT_S,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused("ssh-keygen could not be asked: {}".format(error)) from error
    if done.returncode == 0:
        return True
    text = done.stdout.decode("utf-8", "replace").strip()
    if any(word in text for word in UNSUPPORTED):
        return False
    raise Refused("ssh-keygen refuses it: {}".format(text))


def trusted_keys(path: str) -> List[bytes]:
    """Raw keys of an allowed_signers file; Refused, which names the file, where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return sshsig.allowed_keys(stream.read(MAX_SIGNERS_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise Refused("{} does not exist: nobody is trusted to sign here".format(path)) from None
    except UnicodeDecodeError:
        raise Refused(
            "{} is damaged: expected lines of text; write it again, or remove it and flash".format(path)
        ) from None
    except OSError as error:
        raise Refused("{} cannot be read: {}".format(path, error.strerror)) from None
