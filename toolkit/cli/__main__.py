"""`python -m toolkit.cli` is the command `toolkit`."""

from toolkit.cli.main import main

main(prog_name="toolkit")
