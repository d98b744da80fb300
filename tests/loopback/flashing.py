"""What the flash tests share: a board, a key, versions of the small model as bundles."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from boards.board import Board
from boards.target import Target
from tests.bundles import SmallModel, contents, host_target, small_model
from toolkit.bundle import pack, sign
from toolkit.flash import job as flashing
from toolkit.flash.values import FlashOptions, FlashProgress, FlashReport, RunResult, SlotStatus


class Flasher:
    """Flashes versions of the small model, each packed once, with a configuration folder of its own."""

    def __init__(self, board: Board, folder: Path, target: Target | None = None) -> None:
        self.board = board
        self.folder = folder
        self.target = target or host_target()
        self.options = FlashOptions(
            config_dir=folder / "config", cache_dir=folder / "cache", test_timeout_s=60.0
        )
        self.key = sign.open_key(sign.key_file(self.options.config_dir))

    @property
    def device_dir(self) -> Path:
        return Path(self.board.link.device_dir)

    def bundle(self, version: int) -> Path:
        """The file with this version of the model."""
        path = self.folder / f"{version}.tfb"
        if not path.exists():
            path.write_bytes(self._packed(small_model(version, target=self.target), version))
        return path

    def pack(self, model: SmallModel) -> Path:
        """A file with a model of one's own."""
        path = self.folder / "own.tfb"
        path.write_bytes(self._packed(model))
        return path

    def _packed(self, model: SmallModel, counter: int = 9) -> bytes:
        return pack.pack(contents(model, self.target, (self.board.name,), counter), self.key)

    def flash(self, version: int, progress: FlashProgress = lambda _: None) -> FlashReport:
        return flashing.flash_bundle(self.bundle(version), self.board, self.options, progress)

    def status(self) -> SlotStatus:
        return flashing.slot_status(self.board, self.options)

    def run(self) -> RunResult:
        return flashing.run(
            self.board, [small_model(1, target=self.target).x.tobytes()], options=self.options
        )

    def running_version(self) -> int:
        """Which version's outputs the board computes."""
        y = np.frombuffer(self.run().outputs[0], np.float32)
        versions = [
            v for v in (1, 2) if np.allclose(y, small_model(v, target=self.target).y.ravel(), rtol=1e-4)
        ]
        assert len(versions) == 1, y
        return versions[0]

    def assert_runs(self, version: int) -> None:
        assert self.running_version() == version

    def snapshot(self) -> dict[str, tuple[int, int, bytes]]:
        """Everything about bundles on the board: inodes, times of change and contents."""
        found = {}
        for top in ("slots", "objects", "allowed_signers", "current"):
            for path in [self.device_dir / top, *sorted((self.device_dir / top).rglob("*"))]:
                facts = path.lstat()
                data = os.readlink(path).encode() if path.is_symlink() else b""
                changed_ns = 0 if top == "objects" else facts.st_mtime_ns  # uses are noted there
                found[str(path)] = (facts.st_ino, changed_ns, data if path.is_dir() else path.read_bytes())
        return found
