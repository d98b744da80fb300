"""What pyproject.toml cannot say: man pages and completions of shells are made from the commands."""

import sys
from collections import defaultdict
from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete
from click_man.core import write_man_pages
from setuptools import setup

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from toolkit.cli.main import flash, main, tune_for_board  # noqa: E402 - found by the line above
from toolkit.version import TOOL_VERSION  # noqa: E402

PROGRAMS = {"toolkit": main, "tune-for-board": tune_for_board, "flash": flash}
SHELLS = {  # by the shell's class: where in an installation it looks for completions
    BashComplete: "share/bash-completion/completions/{}",
    ZshComplete: "share/zsh/site-functions/_{}",
    FishComplete: "share/fish/vendor_completions.d/{}.fish",
}
MANUAL = "share/man/man1"


def write_shared(folder: Path) -> list[tuple[str, list[str]]]:
    """Write them below a folder; as setuptools' `data_files`: folders of an installation, their files."""
    (folder / MANUAL).mkdir(parents=True, exist_ok=True)
    for name, program in PROGRAMS.items():
        write_man_pages(name, program, version=TOOL_VERSION, target_dir=str(folder / MANUAL), date="")
        for shell, place in SHELLS.items():
            path = folder / place.format(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            complete = shell(program, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
            path.write_text(
                ShellComplete.source(complete)
            )  # the method of bash's class wants bash to be here
    found = defaultdict(list)
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        found[str(path.parent.relative_to(folder))].append(str(path.relative_to(HERE)))
    return sorted(found.items())


setup(data_files=write_shared(HERE / "build" / "shared"))
