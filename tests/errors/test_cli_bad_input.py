"""Bad input on the command line: the exit code, the message in full, nothing on stdout, no traceback."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.onnx_models import model, node, save
from toolkit.bundle.sign import key_file, open_key
from toolkit.cli.main import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in an empty folder, with a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


def tune(*arguments: object) -> list[object]:
    return ["tune", *arguments, "--board", "host", "--records", "records.db", "--trials", "1"]


def conv(batch: int | str = 1, op: str = "Relu") -> Any:
    weights = np.linspace(-1, 1, 6).reshape(2, 3, 1, 1).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], "a"), node(op, ["a"], "y")]
    return model(nodes, {"x": (batch, 3, 4, 4)}, ["y"], {"w": weights})


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert message in result.stderr


def test_a_missing_model(run: Callable[..., Result]) -> None:
    refused(
        run(*tune("no.onnx")),
        "error: model no.onnx: expected an ONNX file, found nothing there; check the path",
    )


def test_a_truncated_model(run: Callable[..., Result], tmp_path: Path) -> None:
    path = save(tmp_path, conv())
    path.write_bytes(path.read_bytes()[:-40])
    result = run(*tune(path))
    refused(result, f"error: model {path}: expected an ONNX file, found ")
    assert "the file is truncated, damaged or of another format; export or copy it again" in result.stderr


def test_an_unsupported_operator_is_named_with_its_node_and_what_to_do(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    path = save(tmp_path, conv(op="RandomNormalLike"))
    result = run(*tune(path))
    refused(
        result,
        f"error: model {path}: node 'node_y' (RandomNormalLike): ",
    )
    assert "export the model with other operators, or cut it before this node" in result.stderr


def test_a_dynamic_shape_asks_for_the_option(run: Callable[..., Result], tmp_path: Path) -> None:
    path = save(tmp_path, conv(batch="N"))
    refused(
        run(*tune(path)),
        f"error: model {path}: input 'x' has the dynamic shape [N, 3, 4, 4]; expected every dimension to be "
        "known; give the shape, for example --shape 'x=1,3,4,4'",
    )


def test_a_shape_for_an_input_that_is_not_there(run: Callable[..., Result], tmp_path: Path) -> None:
    path = save(tmp_path, conv())
    refused(run(*tune(path), "--shape", "z=1"), "--shape names the input 'z', which the model does not have")


def test_an_unknown_board_shows_near_names(run: Callable[..., Result]) -> None:
    refused(
        run("tune", "m.onnx", "--board", "rpi3"),
        "error: No board is named 'rpi3': did you mean rpi3b or rpi5 or rpi4? `toolkit boards list` shows "
        "the boards;",
    )


@pytest.mark.parametrize("command", [["doctor"], ["boards", "show"], ["boards", "probe"]])
def test_every_command_with_a_board_knows_near_names(run: Callable[..., Result], command: list[str]) -> None:
    refused(run(*command, "jetson-nani"), "did you mean jetson-nano or jetson-orin-nano?")


def test_a_board_file_that_is_not_there(run: Callable[..., Result]) -> None:
    words = (
        "error: The board file my.toml cannot be read: No such file or directory. Check the path, or name a"
    )
    refused(run("tune", "m.onnx", "--board", "my.toml"), words)


def test_an_address_that_is_left_out(run: Callable[..., Result]) -> None:
    refused(
        run("boards", "show", "rpi3b@"), "Board rpi3b cannot be reached at '': expected [USER@]HOST[:PORT]."
    )


def test_a_bad_board_file_names_the_file_the_key_and_what_was_expected(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    path = tmp_path / "my.toml"
    path.write_text('name = "my"\ntitle = "t"\ndescription = "d"\nsources = ["s"]\nprobed = true\n'
                    '[link]\nkind = "locl"\n')  # fmt: skip
    refused(
        run("tune", "m.onnx", "--board", path),
        f"error: {path} is not a valid board file:\n"
        "  `link.kind`: expected 'local' or 'ssh' or 'emulator' or 'tcp', found 'locl' [types]\n",
    )


def test_an_unknown_target(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("tune", save(tmp_path, conv()), "--board", "rock960", "--target", "a73")
    refused(result, "error: Board rock960 has no target named 'a73': expected a72 or a53 or mali.")


def test_an_output_folder_that_is_not_there(run: Callable[..., Result], tmp_path: Path) -> None:
    refused(
        run(*tune(save(tmp_path, conv())), "-o", "no/such/folder/m.tfb"),
        "error: the bundle cannot be written to no/such/folder/m.tfb: No such file or directory; expected a "
        "file name in an existing folder that you may write to: name one with -o",
    )


def test_a_read_only_output_folder(run: Callable[..., Result], tmp_path: Path) -> None:
    folder = Path("/proc/sys")  # nobody may write here, root included
    if os.geteuid() != 0:
        folder = tmp_path / "fixed"
        folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    result = run(*tune(save(tmp_path, conv())), "-o", folder / "m.tfb")
    refused(result, f"error: the bundle cannot be written to {folder}/m.tfb: ")
    assert "name one with -o" in result.stderr
    assert not (tmp_path / "records.db").exists()


def test_an_output_that_would_replace_the_model(run: Callable[..., Result], tmp_path: Path) -> None:
    path = save(tmp_path, conv())
    before = path.read_bytes()
    refused(
        run(*tune(path), "-o", path), f"error: the bundle would replace the model {path}: name another file"
    )
    assert path.read_bytes() == before


def test_a_search_that_cannot_be_made_is_refused_before_anything_is_connected(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    asked = tune(save(tmp_path, conv()))
    for words, message in (
        (("--prior", "no.tfbm"), "error: the cost model no.tfbm cannot be read: No such file"),
        (("--cost-model", "treegru", "--features", "context"), "reads tree features, not context ones"),
        (
            ("--tuner", "grid", "--prior", "p", "--alpha", "1"),
            "--tuner grid reads no --prior, --alpha: leave that out",
        ),
    ):
        result = run(*asked, *words)
        refused(result, message)
        assert "import " not in result.stderr


def test_an_output_that_is_a_folder(run: Callable[..., Result], tmp_path: Path) -> None:
    refused(run(*tune(save(tmp_path, conv())), "-o", tmp_path), "cannot be written to " + str(tmp_path))


def test_records_that_are_something_else(run: Callable[..., Result], tmp_path: Path) -> None:
    Path("records.db").write_text("no database" * 100)
    refused(run(*tune(save(tmp_path, conv()))), "error: records.db is not a records file or is damaged")


def test_no_records_to_read(run: Callable[..., Result]) -> None:
    words = "error: no records file at r.db: tune first, or name an existing file with --records"
    refused(run("records", "list", "--records", "r.db"), words)
    refused(run("records", "export", "out.jsonl", "--records", "r.db"), words)


def test_lines_that_are_no_records(run: Callable[..., Result]) -> None:
    Path("lines.jsonl").write_text("{}\n")
    refused(
        run("records", "import", "lines.jsonl", "--records", "r.db"), "error: lines.jsonl:1: not a record"
    )


def test_a_bundle_that_is_not_there(run: Callable[..., Result]) -> None:
    refused(
        run("flash", "no.tfb", "--board", "host"), "error: the bundle no.tfb cannot be opened: No such file"
    )


def test_a_file_that_is_no_bundle(run: Callable[..., Result]) -> None:
    Path("no.tfb").write_text("something else")
    result = run("flash", "no.tfb", "--board", "host")
    assert result.exit_code == 6
    assert "error: bundle no.tfb is no bundle: expected it to begin with" in result.stderr


def test_a_signing_key_that_others_can_read(run: Callable[..., Result], tmp_path: Path) -> None:
    open_key(key_file())
    key_file().chmod(0o644)
    result = run(*tune(save(tmp_path, conv())))
    refused(result, "has mode 0644, expected 0600")


def test_arrays_that_cannot_be_read(run: Callable[..., Result]) -> None:
    Path("x.npy").write_text("no array")
    refused(run("run", "x.npy", "--board", "host"), "error: x.npy holds no array of numbers; expected a file")
    refused(run("run", "y.npy", "--board", "host"), "error: y.npy cannot be read: No such file or directory;")


def test_an_input_that_is_given_twice(run: Callable[..., Result]) -> None:
    np.save("x.npy", np.zeros(3, np.float32))
    refused(
        run("run", "x.npy", "x.npy", "--board", "host"), "the only input is given twice: name each one once"
    )
    refused(run("run", "a=x.npy", "a=x.npy", "--board", "host"), "the input a is given twice")


def test_an_archive_that_cannot_be_written(run: Callable[..., Result]) -> None:
    refused(
        run("runtime", "archive", "-o", "no/r.pyz"),
        "error: the runtime cannot be written to no/r.pyz: No such",
    )


def test_a_board_that_cannot_be_reached(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("tune", save(tmp_path, conv()), "--board", "rpi3b@127.0.0.1:1", "--records", "r.db")
    assert result.exit_code == 3
    assert re.search(r"^error: .*127\.0\.0\.1", result.stderr, re.MULTILINE)
    assert run("doctor", "rpi3b@127.0.0.1:1").exit_code == 3
