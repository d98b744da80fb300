"""Bundles with an OpenCL variant flashed to PoCL: what runs, what falls back to the CPU, what goes back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import Board
from tests.bundles import small_model
from tests.gpu_bundles import gpu_contents
from tests.loopback.conftest import in_folder
from toolkit.bundle import pack, sign
from toolkit.bundle.pack import BundleContents
from toolkit.errors import InputError, RolledBack, VerificationError
from toolkit.flash import job as flashing
from toolkit.flash.values import FlashOptions, FlashReport, RunResult

pytestmark = pytest.mark.slow

NO_ICD = "/nonexistent"


class GpuFlasher:
    """Flashes versions of the small model with an OpenCL variant to a PoCL board of its own."""

    def __init__(self, board: Board, folder: Path) -> None:
        self.board = board
        self.folder = folder
        self.options = FlashOptions(config_dir=folder / "config", cache_dir=folder / "cache")
        self.key = sign.open_key(sign.key_file(self.options.config_dir))

    @property
    def device_dir(self) -> Path:
        return Path(self.board.link.device_dir)

    @property
    def binaries(self) -> Path:
        return self.device_dir / "opencl-models" / "binaries"

    def flash(self, contents: BundleContents | None = None) -> FlashReport:
        path = self.folder / "bundle.tfb"
        path.write_bytes(pack.pack(contents or gpu_contents(), self.key))
        return flashing.flash_bundle(path, self.board, self.options)

    def run(self, version: int = 1, **changes: str) -> RunResult:
        """Runs the installed model, which must compute what this version does."""
        model = small_model(version)
        options = replace(self.options, **changes)
        result = flashing.run(self.board, [model.x.tobytes()], options=options)
        got = np.frombuffer(result.outputs[0], np.float32).reshape(model.y.shape)
        np.testing.assert_allclose(got, model.y, rtol=1e-4, atol=1e-5)
        return result


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The binaries of the tests before: theirs are the same few kernels."""
    return tmp_path_factory.mktemp("binaries")


@pytest.fixture
def flasher(pocl_board: Board, tmp_path: Path, kept: Path) -> Iterator[GpuFlasher]:
    found = GpuFlasher(in_folder(pocl_board, tmp_path / "device"), tmp_path)
    shutil.copytree(kept, found.binaries)
    yield found
    shutil.copytree(found.binaries, kept, dirs_exist_ok=True)


def test_the_variant_of_a_device_that_is_there_is_tested_and_runs(flasher: GpuFlasher) -> None:
    report = flasher.flash()
    assert report.changed and report.max_relative_error <= 1e-6
    assert report.variant is not None
    assert (report.variant.target, report.variant.kind, report.variant.reason) == ("opencl", "opencl", "")
    assert report.variant.device.startswith("Portable Computing Language")
    assert flasher.run().variant == report.variant
    assert not flasher.flash().changed
    chosen = flasher.run(target="cpu").variant
    assert (chosen.kind, chosen.reason) == ("cpu", "")


def test_without_the_driver_the_cpu_runs_and_the_reason_is_said(
    flasher: GpuFlasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ICD is hidden from the whole runtime, as on a board whose driver is not installed."""
    with monkeypatch.context() as hidden:
        hidden.setenv("OCL_ICD_VENDORS", NO_ICD)
        report = flasher.flash()
        found = flasher.run().variant
        assert report.variant == found
        with pytest.raises(InputError, match="has no variant for this board: opencl: no OpenCL device"):
            flasher.run(target="opencl")
    assert (found.target, found.kind) == ("cpu", "cpu")
    assert found.reason == (
        "opencl: no OpenCL device 'Portable Computing Language'; there is: none; install its OpenCL driver"
    )
    assert "fell back to cpu on " in found.text
    assert flasher.run().variant.kind == "opencl"  # the driver is back


def test_a_bundle_without_a_cpu_variant_needs_the_driver(
    flasher: GpuFlasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = gpu_contents(with_cpu=False)
    with monkeypatch.context() as hidden:
        hidden.setenv("OCL_ICD_VENDORS", NO_ICD)
        with pytest.raises(InputError, match="no variant for this board: opencl: no OpenCL device"):
            flasher.flash(contents)
    assert flasher.flash(contents).changed
    assert flasher.run().variant.kind == "opencl"


def test_a_bundle_whose_driver_has_gone_gives_way_to_the_one_before(
    flasher: GpuFlasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = flasher.flash()
    flasher.flash(gpu_contents(2, with_cpu=False))
    monkeypatch.setenv("OCL_ICD_VENDORS", NO_ICD)
    for _ in range(3):
        with pytest.raises(InputError, match="no variant for this board"):
            flasher.run(2)
    result = flasher.run(1)
    assert (result.bundle_id, result.variant.kind) == (first.bundle_id, "cpu")
    status = flashing.slot_status(flasher.board, flasher.options)
    assert status.last_failure is not None and "3 failed starts" in status.last_failure["text"]


def test_a_device_that_is_too_small_is_not_used(flasher: GpuFlasher) -> None:
    report = flasher.flash(gpu_contents(threads=16384))
    assert report.variant is not None
    assert report.variant.kind == "cpu"
    assert "it needs 16384 threads a block, Portable Computing Language" in report.variant.reason


@pytest.mark.parametrize(
    ("scale", "words"),
    [("wrong", r"wrong_answer: output y: max \|error\|"), ("refused", "build: .*BUILD_PROGRAM")],
)
def test_a_variant_that_fails_its_test_is_not_kept(flasher: GpuFlasher, scale: str, words: str) -> None:
    """The CPU's variant would have passed: a broken GPU variant is no reason to fall back."""
    with pytest.raises(VerificationError, match=words):
        flasher.flash(gpu_contents(2, scale))
    first = flasher.flash()
    with pytest.raises(RolledBack, match=f"(?s)self-test failed: {words}.*{first.bundle_id} is current"):
        flasher.flash(gpu_contents(2, scale))
    assert flasher.run().variant.kind == "opencl"


def test_an_update_and_the_way_back(flasher: GpuFlasher) -> None:
    first = flasher.flash()
    second = flasher.flash(gpu_contents(2))
    assert second.previous == first.bundle_id
    flasher.run(2)
    assert flashing.roll_back(flasher.board, flasher.options).current == first.bundle_id
    assert flasher.run(1).variant.kind == "opencl"


def test_a_damaged_model_does_not_start(flasher: GpuFlasher) -> None:
    flasher.flash()
    (path,) = flasher.device_dir.glob("slots/*/opencl/model.gpu")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(VerificationError, match="model.gpu is damaged: part opencl/model.gpu: expected"):
        flasher.run()


def test_binaries_are_kept_and_the_source_is_there_without_them(flasher: GpuFlasher) -> None:
    shutil.rmtree(flasher.binaries)  # of the tests before
    flasher.flash()  # which starts the model once; PoCL's binaries are kept from the second start on
    flasher.run()
    kept = sorted(flasher.binaries.iterdir())
    assert len(kept) == 2 and all(path.stat().st_size > 1000 for path in kept)  # one for each kernel
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1])
    flasher.run()
    assert all(path.stat().st_size > 1000 for path in kept)
    for path in kept:
        path.unlink()
    flasher.run()
    assert sorted(flasher.binaries.iterdir()) == kept
    assert not list((flasher.device_dir / "opencl-models").glob("scratch-*"))
