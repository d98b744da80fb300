"""A device directory whose slots tests change, and bundles to install there."""

from __future__ import annotations

from pathlib import Path

from device_runtime.installed.bundle_slots import Slots
from tests.bundles import small_model, write_bundle
from toolkit.bundle import sign, verify


class SlotBoard:
    """A device directory, and bundles whose objects lie in a folder by hash."""

    def __init__(self, folder: Path, bundles: dict[int, verify.VerifiedBundle]) -> None:
        self.device_dir = folder / "device"
        self.objects = folder / "objects"
        self.bundles = bundles
        self.device_dir.mkdir()
        self.objects.mkdir()
        signer = bundles[1].signer
        (self.device_dir / "allowed_signers").write_text(signer.allowed_signers_line)
        for number, bundle in bundles.items():
            for part in bundle.manifest.parts:
                (self.objects / part.sha256).write_bytes(bundle.read_part(part.path))
            (self.objects / f"manifest-{number}").write_bytes(bundle.manifest_bytes)
            (self.objects / f"signature-{number}").write_bytes(bundle.signature)

    @property
    def slots(self) -> Slots:
        return Slots(str(self.device_dir))

    def id(self, number: int) -> str:
        return self.bundles[number].id

    def install(self, number: int, *, board: str = "", permitted: bool = False) -> dict[str, object]:
        slots = self.slots
        with slots.locked():
            manifest, signature = (
                str(self.objects / f"{kind}-{number}") for kind in ("manifest", "signature")
            )
            find = self.objects.joinpath
            return slots.install(
                manifest, signature, lambda sha: str(find(sha)), board=board, permitted=permitted
            )

    def flash(self, number: int, *, permitted: bool = False) -> None:
        """What a whole flash changes; the model itself is run elsewhere."""
        self.install(number, permitted=permitted)
        slots, bundle_id = self.slots, self.id(number)
        with slots.locked():
            slots.tested(bundle_id, None)
        with slots.locked():
            slots.activate(bundle_id)
        with slots.locked():
            slots.startable()
            slots.begin_start()
        with slots.locked():
            slots.end_start(bundle_id, None)
        with slots.locked():
            slots.commit(bundle_id)

    def linked(self) -> str:
        """The slot that an application finds behind `current`; "" when there is no link."""
        link = self.device_dir / "current"
        return link.readlink().name if link.is_symlink() else ""


def three_bundles(folder: Path) -> dict[int, verify.VerifiedBundle]:
    """Bundles 1 to 3 of one signer, which differ in a parameter of their model; counters 1 to 3."""
    key = sign.open_key(folder / "signing_key")
    paths = {
        number: write_bundle(folder, key, small_model(number), f"{number}.tfb", counter=number)
        for number in (1, 2, 3)
    }
    return {number: verify.open_bundle(path, [key.public]) for number, path in paths.items()}


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every file below a folder."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }
