"""Packing and reading back: determinism, contents, refusals."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from tests.bundles import contents, host_target, small_model
from toolkit.bundle import container, manifest, pack, sign, verify
from toolkit.bundle.build import build
from toolkit.bundle.pack import BundleContents, GoldenData
from toolkit.errors import InputError, OutputError, VerificationError


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> sign.SigningKey:
    return sign.open_key(tmp_path_factory.mktemp("config") / "signing_key")


@pytest.fixture(scope="module")
def packed(key: sign.SigningKey) -> bytes:
    return pack.pack(contents(small_model()), key)


@pytest.fixture
def bundle(packed: bytes, key: sign.SigningKey, tmp_path: Path) -> verify.VerifiedBundle:
    path = tmp_path / "small.tfb"
    pack.write(packed, path)
    return verify.open_bundle(path, [key.public])


def test_the_same_contents_give_the_same_bytes(packed: bytes, key: sign.SigningKey) -> None:
    assert pack.pack(contents(small_model()), key) == packed


def test_the_manifest_says_where_everything_comes_from(bundle: verify.VerifiedBundle) -> None:
    said = bundle.manifest
    variant = said.variants[0]
    kernel = variant.kernels[0]
    assert (kernel.operator_key, kernel.trials, kernel.seconds, kernel.tuned) == (
        "k_scale-key",
        32,
        1.25e-6,
        True,
    )
    assert kernel.configuration == {"tile_i": 4, "order": ["i", "j"]}
    assert (said.format, said.counter) == (4, 1)
    assert said.compatibility.boards == ("host",)
    assert said.compatibility.machines == (os.uname().machine,)
    assert said.inputs[0].shape == (4, 8)
    assert variant.workspace_bytes == 256
    assert bundle.id == hashlib.sha256(bundle.manifest_bytes).hexdigest()[:32]


def test_a_bundle_may_serve_several_targets(key: sign.SigningKey, tmp_path: Path) -> None:
    other = replace(load("emulated-a53").target(None), name="a53")
    here = small_model()
    both = replace(
        contents(here), models=(build(here.plan, host_target()), build(small_model(target=other).plan, other))
    )
    path = tmp_path / "both.tfb"
    path.write_bytes(pack.pack(both, key))
    said = verify.open_bundle(path, [key.public]).manifest
    assert [variant.target for variant in said.variants] == [host_target().name, other.name]
    assert set(said.compatibility.machines) == {os.uname().machine, "aarch64"}
    libraries = [part.path for part in said.parts if part.path.endswith("model.so")]
    assert libraries == sorted(variant.library for variant in said.variants)


def test_every_part_is_aligned_and_reads_back(bundle: verify.VerifiedBundle) -> None:
    envelope = container.Envelope(bundle.manifest_bytes, bundle.signature)
    starts = container.offsets(bundle.manifest, envelope)
    data = bundle.path.read_bytes()
    for part in bundle.manifest.parts:
        assert starts[part.path] % 64 == 0
        assert bundle.read_part(part.path) == data[starts[part.path] :][: part.size_bytes]
    plan = json.loads(bundle.read_part(f"{host_target().name}/plan.json"))
    assert [step["symbol"] for step in plan["steps"]] == ["k_scale", "k_dense"]
    assert plan["steps"][0]["buffers"] == [["input", 0], ["parameter", 0], ["arena", 0]]


def test_the_manifest_can_be_checked_with_ssh_keygen(bundle: verify.VerifiedBundle, tmp_path: Path) -> None:
    (tmp_path / "allowed_signers").write_text(bundle.signer.allowed_signers_line)
    (tmp_path / "signature").write_bytes(bundle.signature)
    command = ["ssh-keygen", "-Y", "verify", "-f", "allowed_signers", "-I", "tune-for-board"]
    command += ["-n", "tune-for-board-bundle", "-s", "signature"]
    good = subprocess.run(command, input=bundle.manifest_bytes, cwd=tmp_path, capture_output=True)
    assert good.returncode == 0, good.stderr
    bad = subprocess.run(command, input=bundle.manifest_bytes[:-1], cwd=tmp_path, capture_output=True)
    assert bad.returncode != 0


def test_an_unknown_part_is_named(bundle: verify.VerifiedBundle) -> None:
    with pytest.raises(InputError, match="has no part 'weights.bin'; its parts are"):
        bundle.read_part("weights.bin")


def test_a_part_changed_after_opening_is_refused(bundle: verify.VerifiedBundle) -> None:
    data = bytearray(bundle.path.read_bytes())
    data[-64] ^= 1
    bundle.path.write_bytes(data)
    with pytest.raises(VerificationError, match="is damaged: expected SHA-256"):
        bundle.read_part(bundle.manifest.parts[-1].path)


def test_a_bundle_in_a_folder_that_is_not_there(packed: bytes, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written to .* name another place with -o"):
        pack.write(packed, tmp_path / "absent" / "small.tfb")


def test_writing_over_an_old_bundle_leaves_nothing_else(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small.tfb"
    path.write_bytes(b"old")
    pack.write(packed, path)
    assert path.read_bytes() == packed
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_bundle(tmp_path: Path, key: sign.SigningKey) -> None:
    with pytest.raises(InputError, match="cannot be opened: No such file"):
        verify.open_bundle(tmp_path / "absent.tfb", [key.public])
    (tmp_path / "text.tfb").write_text("hello")
    with pytest.raises(VerificationError, match="is no bundle: expected it to begin with b'TFBUNDLE'"):
        verify.open_bundle(tmp_path / "text.tfb", [key.public])


def test_another_format_says_what_to_do(packed: bytes, key: sign.SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "new.tfb"
    path.write_bytes(packed[:8] + b"\x02" + packed[9:])
    with pytest.raises(VerificationError, match="has bundle format 2, expected 1; pack it again"):
        verify.open_bundle(path, [key.public])


def test_the_host_trusts_itself_and_its_allowed_signers(tmp_path: Path) -> None:
    assert verify.trusted_keys(tmp_path) == ()
    own = sign.open_key(sign.key_file(tmp_path)).public
    friend = sign.open_key(tmp_path / "friend").public
    assert verify.trusted_keys(tmp_path) == (own,)
    (tmp_path / "allowed_signers").write_text(friend.allowed_signers_line)
    assert verify.trusted_keys(tmp_path) == (own, friend)


def _golden(**changes: object) -> BundleContents:
    model = small_model()
    golden = replace(GoldenData((model.x,), (model.y,)), **changes)
    return replace(contents(model), golden=golden)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: _golden(inputs=()), "golden inputs: expected 1 arrays, found 0"),
        (lambda: _golden(outputs=(np.zeros((4, 4), np.float32),)), r"expected float32 \(4, 3\), found"),
        (lambda: _golden(outputs=(np.full((4, 3), np.nan, np.float32),)), "holds values that are not finite"),
        (lambda: replace(_golden(), models=()), "has no model"),
        (lambda: replace(_golden(), models=_golden().models * 2), "two models for one target"),
    ],
)
def test_contents_that_contradict_themselves(
    broken: Callable[[], BundleContents], message: str, key: sign.SigningKey
) -> None:
    contradictory = broken()
    with pytest.raises(InputError, match=message):
        pack.pack(contradictory, key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2, expected 4: tune the model again with this version"),
        ({"counter": -1}, "is malformed: .*counter"),
        ({"counter": 1 << 53}, "is malformed: .*counter"),
        ({"name": "a\nb"}, "has the name .* expected at most 1000 printable characters"),
        ({"surprise": 1}, "is malformed: .*surprise"),
        ({"variants": []}, "has no variant"),
        ({"parts": []}, "refers to the part .* which it does not list"),
        ({"name": 3}, "is malformed"),
    ],
)
def test_manifests_that_are_not_right(
    bundle: verify.VerifiedBundle, change: dict[str, object], message: str
) -> None:
    data = {**json.loads(bundle.manifest_bytes), **change}
    with pytest.raises(VerificationError, match=message):
        manifest.decode(msgspec.json.encode(data, order="sorted"))


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a//b", "", ".hidden", "A", "a/../b"])
def test_part_paths_stay_inside(bundle: verify.VerifiedBundle, path: str) -> None:
    part = manifest.Part(path=path, size_bytes=0, sha256="0" * 64)
    parts = tuple(sorted((*bundle.manifest.parts, part), key=lambda one: one.path))
    with pytest.raises(VerificationError, match="expected lower-case names"):
        manifest.check(replace(bundle.manifest, parts=parts))


def test_a_manifest_in_another_spelling_is_refused(bundle: verify.VerifiedBundle) -> None:
    spaced = json.dumps(json.loads(bundle.manifest_bytes), sort_keys=True).encode()
    with pytest.raises(VerificationError, match="not in canonical form"):
        manifest.decode(spaced)
