"""The module format of GPU targets: what is written is read again, and anything else is refused by name."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from device_runtime.protocol import (
    BAD_REQUEST,
    BAD_VERSION,
    WORKSPACE,
    GpuKernel,
    GpuModule,
    Launch,
    ProtocolError,
    merged,
)

LAUNCHES = (
    Launch("pad", (7, 1, 1), (64, 1, 1), (0, WORKSPACE)),
    Launch("conv", (3, 2, 1), (16, 4, 1), (WORKSPACE, 1, 2)),
)
MODULE = GpuModule("opencl", {"conv_0": GpuKernel("kernel void pad() {}", 4096, LAUNCHES)})


def test_a_module_survives_the_way_to_the_board() -> None:
    assert GpuModule.from_bytes(MODULE.to_bytes()) == MODULE
    cubin = GpuModule("cuda", {"conv_0": replace(MODULE.kernels["conv_0"], code=b"\x7fELF")})
    assert GpuModule.from_bytes(cubin.to_bytes()) == cubin


def test_the_global_size_counts_threads() -> None:
    assert LAUNCHES[1].global_size == (48, 8, 1)


def test_modules_merge_and_refuse_a_symbol_twice() -> None:
    other = GpuModule("opencl", {"conv_1": MODULE.kernels["conv_0"]})
    assert list(merged([MODULE, other]).kernels) == ["conv_0", "conv_1"]
    with pytest.raises(ProtocolError, match="conv_0 comes twice"):
        merged([MODULE, MODULE])
    with pytest.raises(ProtocolError, match="one language"):
        merged([MODULE, GpuModule("cuda", {})])


def _plain() -> dict:
    return msgpack.unpackb(MODULE.to_bytes(), raw=False)


def _kernel(plain: dict) -> dict:
    return plain["kernels"]["conv_0"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda plain: plain.update(language="metal"),
            "'language': expected one of opencl, cuda",
        ),
        (lambda plain: plain.update(kernels={}), "'kernels': expected a map of 1 to"),
        (lambda plain: plain["kernels"].update({"not a name": _kernel(plain)}), "expected a C identifier"),
        (lambda plain: plain.update(extra=1), "unknown entries extra"),
        (lambda plain: _kernel(plain).update(code=b"binary"), "expected str for opencl, found 'bytes'"),
        (lambda plain: _kernel(plain).update(workspace_bytes=-1), "'workspace_bytes': expected 0 to"),
        (lambda plain: _kernel(plain).update(launches=[]), "'launches': expected a list of 1 to"),
        (
            lambda plain: _kernel(plain)["launches"][0].update(local=[64, 1]),
            "'local': expected a list of 3",
        ),
        (
            lambda plain: _kernel(plain)["launches"][0].update({"global": [0, 1, 1]}),
            "expected 1 to",
        ),
        (lambda plain: _kernel(plain)["launches"][0].update(buffers=[-2]), "'buffers': expected -1 to"),
    ],
)
def test_what_is_not_a_module_is_refused_by_name(change, text: str) -> None:
    plain = _plain()
    change(plain)
    with pytest.raises(ProtocolError, match=".*".join(text.split("*"))) as caught:
        GpuModule.from_bytes(msgpack.packb(plain, use_bin_type=True))
    assert caught.value.code == BAD_REQUEST


def test_another_version_and_noise_are_refused() -> None:
    with pytest.raises(ProtocolError, match="version 2, this runtime loads 1") as caught:
        GpuModule.from_bytes(msgpack.packb({**_plain(), "version": 2}))
    assert caught.value.code == BAD_VERSION
    with pytest.raises(ProtocolError, match="not msgpack"):
        GpuModule.from_bytes(b"\xc1")
