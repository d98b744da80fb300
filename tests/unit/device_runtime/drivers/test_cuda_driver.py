"""What of the CUDA driver needs no GPU: its refusals, its arguments, and the order of its calls.

A stand-in for pycuda.driver records the calls; the driver itself has to run on a board with a CUDA GPU.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from device_runtime.drivers import cuda_driver
from device_runtime.drivers.cuda_driver import (
    CudaDevice,
    cuda_devices,
    find_cuda,
    load_pycuda,
    open_cuda,
    pointers,
    typed,
)
from device_runtime.drivers.device import launch_arguments
from device_runtime.protocol import WORKSPACE, GpuKernel, Launch
from device_runtime.sandbox.isolation import Fault


class Stand(SimpleNamespace):
    """A driver module that records what is asked of it; allocations are numbers."""

    class Error(Exception):
        """As pycuda.driver.Error."""

    class MemoryError(Error):
        """As pycuda.driver.MemoryError."""

    def __init__(self) -> None:
        super().__init__(asked=[], Context=SimpleNamespace(synchronize=lambda: self.asked.append("wait")))

    def mem_alloc(self, size_bytes: int) -> int:
        if size_bytes > 1 << 30:
            raise Stand.MemoryError("cuMemAlloc failed: out of memory")
        self.asked.append(("alloc", size_bytes))
        return 0x1000

    def memset_d8(self, handle: int, byte: int, size_bytes: int) -> None:
        self.asked.append(("memset", handle, byte, size_bytes))

    def module_from_buffer(self, code: bytes) -> Any:
        if not code.startswith(b"\x7fELF"):
            raise Stand.Error("cuModuleLoadDataEx failed: no kernel image is available")
        return SimpleNamespace(get_function=lambda name: Function(name, self.asked))

    def Event(self) -> Any:
        return SimpleNamespace(
            record=lambda: self.asked.append("event"), synchronize=lambda: None, time_since=lambda start: 6.0
        )


class Function:
    def __init__(self, name: str, asked: list[object]) -> None:
        self.name, self.asked = name, asked

    def prepare(self, kinds: str) -> None:
        self.asked.append(("prepare", self.name, kinds))

    def prepared_async_call(self, blocks: object, threads: object, stream: object, *arguments: int) -> None:
        self.asked.append((self.name, blocks, threads, stream, arguments))


LAUNCHES = (
    Launch("first", (4, 2, 1), (32, 1, 1), (0, WORKSPACE)),
    Launch("second", (8, 1, 1), (64, 2, 1), (WORKSPACE, 2, 1)),
)
KERNEL = GpuKernel(b"\x7fELF cubin", 256, LAUNCHES)


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice(Stand(), SimpleNamespace(pop=lambda: None))


def test_launches_get_the_addresses_of_their_buffers() -> None:
    assert launch_arguments(KERNEL, [10, 20, 30], 99) == [[10, 99], [99, 30, 20]]
    assert pointers([10, 99]) == [10, 99]
    with pytest.raises(Fault, match="launch second takes argument 2, the kernel has 2"):
        launch_arguments(KERNEL, [10, 20], 99)


def test_a_call_runs_all_launches_in_order_and_waits(device: CudaDevice) -> None:
    call = device.prepare(KERNEL, launch_arguments(KERNEL, [10, 20, 30], 99))
    assert device.driver.asked == [("prepare", "first", "PP"), ("prepare", "second", "PPP")]
    device.driver.asked.clear()
    call.run()
    once = [
        ("first", (4, 2, 1), (32, 1, 1), None, (10, 99)),
        ("second", (8, 1, 1), (64, 2, 1), None, (99, 30, 20)),
    ]
    assert device.driver.asked == [*once, "wait"]


def test_a_call_takes_other_buffers(device: CudaDevice) -> None:
    call = device.prepare(KERNEL, launch_arguments(KERNEL, [10, 20, 30], 99))
    call.place(launch_arguments(KERNEL, [11, 21, 31], 99))
    device.driver.asked.clear()
    call.start()
    assert [entry[-1] for entry in device.driver.asked] == [(11, 99), (99, 31, 21)]


def test_a_repeat_is_timed_by_two_events_around_all_calls(device: CudaDevice) -> None:
    call = device.prepare(KERNEL, launch_arguments(KERNEL, [10, 20, 30], 99))
    device.driver.asked.clear()
    assert call.seconds(3, 0) == pytest.approx(6e-3)
    asked = device.driver.asked
    assert (asked[0], asked[-1], len(asked)) == ("event", "event", 2 + 3 * len(LAUNCHES))


def test_flushes_lie_between_the_timed_calls(device: CudaDevice) -> None:
    call = device.prepare(KERNEL, launch_arguments(KERNEL, [10, 20, 30], 99))
    device.driver.asked.clear()
    assert call.seconds(2, 4096) == pytest.approx(12e-3)
    kinds = [entry if isinstance(entry, str) else entry[0] for entry in device.driver.asked]
    assert kinds == ["alloc", *["memset", "event", "first", "second", "event"] * 2]


def test_pycudas_errors_are_typed(device: CudaDevice) -> None:
    with pytest.raises(Fault, match="a buffer of 2147483648 bytes: cuMemAlloc failed") as caught:
        device.allocate(2 << 30)
    assert caught.value.kind == "out_of_memory"
    with pytest.raises(Fault, match="the cubin: cuModuleLoadDataEx failed") as caught:
        device.prepare(GpuKernel(b"other", 0, LAUNCHES), [[], []])
    assert caught.value.kind == "build"
    with pytest.raises(Fault) as caught, typed(device.driver, "a launch", "launch"):
        raise Stand.Error("cuLaunchKernel failed: too many resources requested for launch")
    assert (caught.value.kind, "too many resources" in caught.value.text) == ("launch", True)


class Card:
    """As pycuda.driver.Device, of a board with two."""

    NAMES = ("Tegra X1", "TITAN X")

    def __init__(self, index: int) -> None:
        self.index = index

    @staticmethod
    def count() -> int:
        return len(Card.NAMES)

    def name(self) -> str:
        return self.NAMES[self.index]

    def compute_capability(self) -> tuple[int, int]:
        return ((5, 3), (5, 2))[self.index]

    def get_attribute(self, attribute: str) -> int:
        return {"MAX_THREADS_PER_BLOCK": 1024}[attribute]


def test_a_device_is_found_by_a_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Stand()
    driver.Device, driver.init = Card, lambda: None
    driver.device_attribute = SimpleNamespace(MAX_THREADS_PER_BLOCK="MAX_THREADS_PER_BLOCK")
    monkeypatch.setattr(cuda_driver, "load_pycuda", lambda: driver)
    assert find_cuda("") == ("Tegra X1", (5, 3), 1024)
    assert find_cuda("titan") == ("TITAN X", (5, 2), 1024)
    with pytest.raises(Fault, match="no CUDA device 'Orin'; there is: Tegra X1; TITAN X") as caught:
        find_cuda("Orin")
    assert caught.value.kind == "link"


def test_without_pycuda_it_says_what_to_install() -> None:
    try:
        importlib.import_module("pycuda.driver")
    except ImportError:
        with pytest.raises(Fault, match="python3 -m pip install pycuda") as caught:
            load_pycuda()
        assert caught.value.kind == "link"
        with pytest.raises(Fault):
            open_cuda("")
        assert cuda_devices() == []
    else:
        pytest.skip("pycuda is installed here")
