"""Regions and the cache of inputs."""

from __future__ import annotations

import ctypes
import functools
import signal
from pathlib import Path
from typing import Any

import pytest

from device_runtime.content_store import Store
from device_runtime.protocol import BAD_REQUEST, MAX_DATA_SETS, NOT_FOUND, ProtocolError
from device_runtime.sandbox import guarded_memory
from device_runtime.sandbox.guarded_memory import Inputs, Region, kept_bytes, memory_bytes
from device_runtime.sandbox.isolation import Limits, run_isolated


def test_regions_are_aligned_zeroed_and_fillable() -> None:
    for size_bytes in (0, 1, 100, 1 << 20):
        region = Region(size_bytes)
        assert region.address % 64 == 0
        assert ctypes.string_at(region.address, size_bytes) == bytes(size_bytes)
        region.fill(0xFF)
        assert ctypes.string_at(region.address, size_bytes) == b"\xff" * size_bytes


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 100, 4096, 5000])
def test_whoever_leaves_a_region_is_killed_or_found(size_bytes: int, at_start: bool) -> None:
    region = Region(size_bytes, at_start)
    region.fill(0xFF)
    assert region.strayed() == ""

    def stray(offset: int) -> str:
        """What becomes of a byte written at an offset, in a child."""

        def work() -> dict[str, str]:
            ctypes.memset(region.address + offset, 7, 1)
            return {"strayed": region.strayed()}

        outcome = run_isolated(work, Limits(10.0, 1 << 28))
        return outcome.failure.text if outcome.failure else str((outcome.answer or {})["strayed"])

    before, after = (
        {"1 bytes before the start", "killed by SIGSEGV"},
        {"1 bytes after the end", "killed by SIGSEGV"},
    )
    assert stray(-1) in before and stray(size_bytes) in after
    if at_start:
        assert stray(-1) == "killed by SIGSEGV"
    else:
        assert stray(-(-size_bytes // 64) * 64) == "killed by SIGSEGV"


def test_a_region_takes_the_place_of_another_of_its_size() -> None:
    first, second, other = Region(5000), Region(5000), Region(5001)
    second.fill(3)
    second.protect()
    assert second.fits(first) and not other.fits(first)

    def work() -> dict[str, Any]:
        second.move_to(first)
        return {"found": bytes(first.memory), "strayed": first.strayed()}

    outcome = run_isolated(work, Limits(10.0, 1 << 28))
    assert outcome.answer == {"found": bytes([3]) * 5000, "strayed": ""}
    assert bytes(first.memory) == bytes(5000)


def test_inputs_are_loaded_once_and_read_only(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    sha = store.add(b"some data")
    inputs = Inputs(store, 1 << 20)
    (region,) = inputs.load([(sha, 9, False)])[sha, 9]
    assert ctypes.string_at(region.address, 9) == b"some data"
    assert inputs.load([(sha, 9, False), (sha, 9, False)])[sha, 9] == (region,)
    outcome = run_isolated(lambda: ctypes.memset(region.address, 0, 1) and {}, Limits(10.0, 1 << 28))
    assert outcome.failure is not None
    assert outcome.failure.signal == signal.SIGSEGV


def test_children_have_the_inputs_that_were_loaded_last(tmp_path: Path) -> None:
    """A fork takes as long as what it hands on is large."""
    store = Store(str(tmp_path))
    inputs, shas = Inputs(store, 1 << 20), [store.add(bytes([number]) * 5000) for number in range(2)]

    def found(region: Region) -> dict[str, Any]:
        return {"bytes": ctypes.string_at(region.address, 5000)}

    both = [inputs.load([(sha, 5000, False)])[sha, 5000][0] for sha in shas]
    for last in (0, 1, 0):
        inputs.load([(shas[last], 5000, False)])
        inherited, other = (
            run_isolated(functools.partial(found, region), Limits(10.0, 1 << 28))
            for region in (both[last], both[1 - last])
        )
        assert inherited.answer == {"bytes": bytes([last]) * 5000}
        assert other.failure is not None and other.failure.signal == signal.SIGSEGV


def test_an_object_holds_several_buffers_each_between_guards_of_its_own(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    sha = store.add(b"".join(bytes([number]) * 100 for number in range(3)))
    regions = Inputs(store, 1 << 20).load([(sha, 100, False)])[sha, 100]
    assert [bytes(region.memory) for region in regions] == [bytes([number]) * 100 for number in range(3)]
    assert len({region.address // 4096 for region in regions}) == 3


def test_the_oldest_are_forgotten_but_never_what_is_wanted(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first, second, third = (store.add(bytes([i]) * 100) for i in range(3))
    inputs = Inputs(store, cap_bytes=250)
    (region,) = inputs.load([(first, 100, False)])[first, 100]
    inputs.load([(second, 100, False)])
    inputs.load([(first, 100, False), (third, 100, False)])
    assert inputs.load([(first, 100, False)])[first, 100] == (region,)
    assert len(inputs.load([(first, 100, False), (second, 100, False), (third, 100, False)])) == 3


def test_many_small_buffers_do_not_use_up_the_mappings_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_memory, "MOST_KEPT_REGIONS", 25)
    store = Store(str(tmp_path))
    first, second, third = (store.add(bytes([number, 0]) * 10) for number in range(3))
    inputs = Inputs(store, cap_bytes=1 << 20)
    old, kept = (inputs.load([(sha, 2, False)])[sha, 2] for sha in (first, second))
    inputs.load([(third, 2, False)])
    assert inputs.load([(second, 2, False)])[second, 2] is kept
    assert inputs.load([(first, 2, False)])[first, 2] is not old


def test_what_does_not_fit_the_request(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    inputs, sha = Inputs(store, 1 << 20), store.add(b"1234")
    many = store.add(bytes(MAX_DATA_SETS + 1))
    for wanted, code in (
        ((sha, 5, False), BAD_REQUEST),
        ((sha, 3, False), BAD_REQUEST),
        ((sha, 0, False), BAD_REQUEST),
        ((many, 1, False), BAD_REQUEST),
        (("0" * 64, 4, False), NOT_FOUND),
    ):
        with pytest.raises(ProtocolError) as refused:
            inputs.load([wanted])
        assert refused.value.code == code


@pytest.mark.parametrize("memory_mib, kept_mib", [(512, 32), (1024, 64), (4096, 256), (65536, 256)])
def test_a_small_board_keeps_little(memory_mib: int, kept_mib: int) -> None:
    assert kept_bytes(memory_mib << 20) == kept_mib << 20


def test_the_memory_of_this_machine_is_known() -> None:
    found = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line)
    assert abs(memory_bytes() - int(found.split()[1]) * 1024) < 1 << 20
