"""The door for reading a bundle: signature first, then every hash, and only then the contents.

`open_bundle` reads the file once from one descriptor and believes nothing before the signature over the
manifest holds. `VerifiedBundle.read_part` checks a part's hash again each time it is read, because the file
may have been changed in between.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from toolkit.bundle import container, manifest, sign
from toolkit.bundle.manifest import AnyVariant, Manifest, Part
from toolkit.errors import InputError, VerificationError


class VerifiedBundle(msgspec.Struct, frozen=True):
    """A bundle whose signature and hashes held when it was opened.

    `path` is the file or, of an installed bundle, the folder of its slot on the board, of which `read` reads
    the parts.
    """

    path: Path
    manifest: Manifest
    manifest_bytes: bytes
    signature: bytes
    signer: sign.PublicKey
    read: Callable[[Part], bytes] | None = None

    @property
    def id(self) -> str:
        """Name of the bundle's slot on a board."""
        return manifest.bundle_id(self.manifest_bytes)

    def variant(self, target: str = "") -> AnyVariant:
        """The model for a target, by default the first one. Raises InputError."""
        variants = {variant.target: variant for variant in self.manifest.variants}
        name = target or self.manifest.variants[0].target
        if name not in variants:
            expected = " or ".join(variants)
            raise InputError(f"{self.path} has no variant for target {name!r}: expected {expected}")
        return variants[name]

    def read_part(self, path: str) -> bytes:
        """The bytes of one part; raises VerificationError when they are not what was signed."""
        part = next((part for part in self.manifest.parts if part.path == path), None)
        if part is None:
            known = ", ".join(part.path for part in self.manifest.parts)
            raise InputError(f"{self.path} has no part {path!r}; its parts are {known}")
        if self.read is not None:
            return _checked(self.read(part), part, self.path)
        envelope = container.Envelope(self.manifest_bytes, self.signature)
        with self.path.open("rb") as stream:
            stream.seek(container.offsets(self.manifest, envelope)[path])
            return _checked(container.read_padded(stream, part.size_bytes, str(self.path)), part, self.path)


def open_bundle(path: Path | str, trusted: Iterable[sign.PublicKey]) -> VerifiedBundle:
    """Check the bundle in `path` down to its last byte.

    Raises InputError when there is no such file, VerificationError when anything about it is not as it was
    when one of the `trusted` keys signed it.
    """
    path = Path(path)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(
            f"the bundle {path} cannot be opened: {error.strerror}; name an existing file"
        ) from error
    where = f"bundle {path}"
    with stream:
        envelope = container.read_envelope(stream, where)
        found = verified(path, envelope.manifest, envelope.signature, trusted)
        _check_size(os.fstat(stream.fileno()).st_size, container.end(found.manifest, envelope), where)
        for part in found.manifest.parts:
            data = container.read_padded(stream, part.size_bytes, f"{where}: the part {part.path}")
            _checked(data, part, path)
    return found


def verified(
    path: Path,
    manifest_bytes: bytes,
    signature: bytes,
    trusted: Iterable[sign.PublicKey],
    read: Callable[[Part], bytes] | None = None,
) -> VerifiedBundle:
    """The bundle with this manifest, of whose parts nothing was read yet. Raises VerificationError."""
    where = f"bundle {path}"
    signer = sign.verify(manifest_bytes, signature, trusted, where)
    contents = manifest.decode(manifest_bytes, where)
    return VerifiedBundle(path, contents, manifest_bytes, signature, signer, read)


def trusted_keys(config_dir: Path | str | None = None) -> tuple[sign.PublicKey, ...]:
    """The keys this host trusts: its own signing key and those in allowed_signers beside it."""
    own = sign.key_file(config_dir)
    keys = [sign.open_key(own).public] if own.exists() else []
    others = sign.signers_file(config_dir)
    try:
        keys += sign.read_allowed_signers(others.read_bytes().decode())
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the trusted signers {others} cannot be read: {error}; expected lines such as ssh-keygen's "
            "allowed_signers have: correct the file, or remove it to trust this host's own key alone"
        ) from error
    return tuple(keys)


def _check_size(found_bytes: int, expected_bytes: int, where: str) -> None:
    """Before anything of that size is read: memory is for what is really in the file."""
    if found_bytes != expected_bytes:
        raise VerificationError(
            f"{where} has {found_bytes} bytes, expected {expected_bytes} by its manifest; copy the file again"
        )


def _checked(data: bytes, part: Part, path: Path) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise VerificationError(
            f"bundle {path}: the part {part.path} is damaged: expected SHA-256 {part.sha256}, found {found}; "
            "get the file again from where it was made"
        )
    return data
