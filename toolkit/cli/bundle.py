"""toolkit bundle: what is in a bundle, who signed it, and what changed from one to another."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import toolkit
from toolkit.cli.answers import answer, answering, columns, wide_option

FILE: Final = click.Path(path_type=Path)


@click.group()
def bundle() -> None:
    """Look into bundles; nothing is unpacked and no board asked."""


@bundle.command()
@click.argument("file", type=FILE)
@wide_option
@answering
def show(*, file: Path, as_json: bool) -> None:
    """Say what is in the bundle FILE: kernels, boards, sizes, provenance, counter, and who signed it."""
    found = toolkit.open_bundle(file, toolkit.trusted_keys())
    answer(
        "bundle-show", toolkit.bundle_content(found), toolkit.bundle_text(found, columns()), as_json=as_json
    )


@bundle.command()
@click.argument("file", type=FILE)
@answering
def verify(*, file: Path, as_json: bool) -> None:
    """Check the signature of the bundle FILE and every byte of it; exit code 6 where anything is wrong.

    Trusted are this host's own key and those in allowed_signers beside it.
    """
    found = toolkit.open_bundle(file, toolkit.trusted_keys())
    parts = len(found.manifest.parts)
    text = f"{file} is intact: {found.manifest.name} ({found.id}), {parts} parts, as signed by"
    content = {
        "path": file,
        "bundle_id": found.id,
        "signer": toolkit.signer_content(found.signer),
        "parts": parts,
    }
    answer("bundle-verify", content, f"{text} {found.signer.fingerprint}", as_json=as_json)


@bundle.command()
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@wide_option
@answering
def diff(*, before: Path, after: Path, as_json: bool) -> None:
    """Say what changed from the bundle BEFORE to the bundle AFTER: operators, schedules, times, sizes."""
    trusted = toolkit.trusted_keys()
    changes = toolkit.bundle_changes(
        toolkit.open_bundle(before, trusted), toolkit.open_bundle(after, trusted)
    )
    answer("bundle-diff", changes, toolkit.changes_text(changes, columns()), as_json=as_json)
