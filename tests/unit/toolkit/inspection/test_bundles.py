"""`toolkit bundle`: what is in a bundle, who signed it, and what changed from one to another."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tests.bundles import small_model, write_bundle
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, in a folder with three bundles that this host's key signed: of the same model, of one with
    another schedule and other weights, and one by a stranger."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    own = open_key(tmp_path / "home/.config/tune-for-board/signing_key")
    model = small_model()
    scale, dense = model.plan.kernels
    other = replace(dense.provenance, configuration={"tile_i": 8, "order": ["i", "j"]}, seconds=1.5e-6)
    kernels = (scale, replace(dense, provenance=other))
    changed = small_model(2)
    changed = dataclasses.replace(changed, plan=replace(changed.plan, kernels=kernels))
    write_bundle(tmp_path, own, model, "a.tfb")
    write_bundle(tmp_path, own, changed, "b.tfb", counter=2)
    write_bundle(tmp_path, open_key(tmp_path / "stranger"), model, "stranger.tfb")

    def command(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["bundle", *arguments])
        assert result.exit_code == code, result.output
        return result

    return command


def test_a_bundle_says_what_it_holds_and_who_signed_it(run: Run, tmp_path: Path) -> None:
    own = open_key(tmp_path / "home/.config/tune-for-board/signing_key").public
    text = run("show", "a.tfb").stdout
    for part in (
        own.fingerprint,
        "cpu/model.so",
        "variant cpu",
        "1.25 µs",
        "2.50 µs",
        "note seed",
        "float32",
    ):
        assert part in text
    shown = json.loads(run("show", "a.tfb", "--json").stdout)
    assert (shown["schema"], shown["schema_version"]) == ("tune-for-board/bundle-show", 1)
    assert shown["signer"] == {"key": own.line, "fingerprint": own.fingerprint}
    assert shown["bytes"] == (tmp_path / "a.tfb").stat().st_size and shown["emulated"] is False
    (variant,) = shown["manifest"]["variants"]
    assert [kernel["trials"] for kernel in variant["kernels"]] == [32, 32]


def test_verify_passes_what_is_whole_and_refuses_the_rest(run: Run, tmp_path: Path) -> None:
    shown = json.loads(run("verify", "a.tfb", "--json").stdout)
    assert shown["parts"] == len(json.loads(run("show", "a.tfb", "--json").stdout)["manifest"]["parts"])
    assert "intact" in run("verify", "a.tfb").stdout
    assert "not trusted here" in run("verify", "stranger.tfb", code=6).stderr
    data = bytearray((tmp_path / "a.tfb").read_bytes())
    data[-65] ^= 1
    (tmp_path / "a.tfb").write_bytes(data)
    assert "damaged" in run("verify", "a.tfb", code=6).stderr


def test_a_difference_names_schedules_times_and_parts(run: Run) -> None:
    assert "say the same" in run("diff", "a.tfb", "a.tfb").stdout
    found = json.loads(run("diff", "a.tfb", "b.tfb", "--json").stdout)
    assert {item["name"]: (item["before"], item["after"]) for item in found["facts"]} == {"counter": (1, 2)}
    (kernel,) = found["kernels"]
    assert kernel["operator_key"] == "k_dense-key"
    assert kernel["schedule"] == [{"name": "tile_i", "before": 4, "after": 8}]
    assert (kernel["before"]["seconds"], kernel["after"]["seconds"]) == (1.25e-6, 1.5e-6)
    changed = {item["name"] for item in found["parts"]}
    assert {"cpu/model.so", "golden/output-000.bin"} <= changed and "golden/input-000.bin" not in changed
    text = run("diff", "a.tfb", "b.tfb").stdout
    assert "tile_i 4 -> 8" in text and "1.25 µs" in text and "1.50 µs" in text and "other schedule" in text
