"""What commands print with --json is what docs/schemas/answers.json says, which docs/json.md shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from tests.answers_document import SCHEMAS, document
from tests.bundles import small_model, write_bundle
from tests.conftest import GoldenCheck
from tests.gpu_bundles import gpu_contents
from tests.loopback.tune_board import HOST, board_file, write_network
from toolkit.bundle import pack
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main
from toolkit.model_job import bench as bench_job

DEFINITIONS = json.loads(SCHEMAS.read_text())["$defs"]
Answer = Callable[..., dict[str, Any]]


def test_the_document_shows_every_field(golden: GoldenCheck) -> None:
    golden("../../docs/json.md", document())


def test_every_field_is_required_and_none_is_beyond() -> None:
    def objects(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if "properties" in value and value.get("type") == "object":
                yield value
            for inner in value.values():
                yield from objects(inner)

    found = list(objects(DEFINITIONS))
    assert found and all(item["additionalProperties"] is False for item in found)
    fields = [field for item in found for field in item["properties"].values()]
    assert all(field["description"] for field in fields)


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Runs a command with --json in a folder of its own; what it prints, held against its schema."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
        assert done.exit_code == code, done.output

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        found: dict[str, Any] = json.loads(done.stdout, parse_constant=refuse)
        name = found["schema"].removeprefix("tune-for-board/")
        jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}).validate(found)
        return found

    return run


def test_errors_and_bundles(answer: Answer, tmp_path: Path) -> None:
    key = open_key(tmp_path / "home/.config/tune-for-board/signing_key")
    write_bundle(tmp_path, key, small_model(), "a.tfb")
    (tmp_path / "gpu.tfb").write_bytes(pack.pack(gpu_contents(), key))
    assert answer("bundle", "show", "none.tfb", code=2)["error"]["kind"] == "InputError"
    assert answer("bundle", "verify", "a.tfb")["parts"] > 0
    kinds = [item["kind"] for item in answer("bundle", "show", "gpu.tfb")["manifest"]["variants"]]
    assert kinds == ["opencl", "cpu"]
    changes = answer("bundle", "diff", "a.tfb", "gpu.tfb")
    assert any(item["before"] is None for item in changes["kernels"])


def test_a_quantized_network(answer: Answer, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    write_network(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(6):
        np.save(tmp_path / f"data/{number}.npy", rng.uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32))
    found = answer("quantize", "small.onnx", "--data", "data")
    assert found["layers"] and Path(found["output"]).stat().st_size == found["quantized_bytes"]


@pytest.mark.slow
def test_what_a_tuned_network_answers(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_job, "PAIRS", 2)
    monkeypatch.setattr(bench_job, "ROUNDS", 1)
    network, board = write_network(tmp_path), board_file(tmp_path, HOST)
    records = ("--records", tmp_path / "records.db")
    shape = ("--shape", "x=1,3,14,14")
    tune = ["tune", network, "--board", board, "--trials", "1", *shape, *records, "-o", "small.tfb"]
    assert CliRunner().invoke(main, list(map(str, tune))).exit_code == 0
    assert answer("records", "list", *records)["operators"]
    assert answer("records", "failures", *records)["operators"] == []
    assert answer("records", "best", "best.jsonl", *records)["records"] > 0
    assert answer("report", network, "--board", board, *shape, *records)["operators"]
    kernels = answer("inspect", "small.tfb", "--board", board, *records)["kernels"]
    conv = next(n for n, item in enumerate(kernels, 1) if item["operator"].startswith("conv"))
    inspect = ("inspect", "small.tfb", "--board", board, *records, "--operator")
    assert answer(*inspect, conv)["code"]["kernels"][0]["hot"]
    assert answer(*inspect, "slowest")["code"]["kernels"]
    bench = answer("bench", "--board", board, "--bundle", "small.tfb", "--against", "small.tfb")
    assert bench["comparison"]["high"] is None, "two pairs bound nothing"
