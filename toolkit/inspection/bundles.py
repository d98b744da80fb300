"""What a bundle holds, and what changed from one to another, as text and as data (`toolkit bundle`).

Everything is said by the signed manifest; `open_bundle` has checked it and every part before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolkit.bundle.manifest import AnyVariant, KernelProvenance, Manifest, TensorSpec
from toolkit.bundle.sign import PublicKey
from toolkit.bundle.verify import VerifiedBundle
from toolkit.report.columns import named, table
from toolkit.report.tables import EMULATED, NOTHING, mebibytes, time_text

APART: Final = ("kernels", "parts", "variants")
"""Of manifests and their variants: what is compared piece by piece."""


class Change(msgspec.Struct, frozen=True):
    """One fact that two bundles state differently; None where one states nothing of the kind."""

    name: str
    before: object
    after: object


class KernelChange(msgspec.Struct, frozen=True):
    """An operator whose kernel is in one bundle only, or of which they say something else."""

    target: str
    operator: str
    operator_key: str
    before: KernelProvenance | None
    after: KernelProvenance | None
    schedule: tuple[Change, ...]
    """The knobs that differ."""


class BundleChanges(msgspec.Struct, frozen=True):
    """From one bundle to another; all empty for equal ones."""

    facts: tuple[Change, ...]
    kernels: tuple[KernelChange, ...]
    parts: tuple[Change, ...]
    """Size in bytes of each part that is in one only or has other contents."""
    emulated: bool
    """Some time is of an emulated board."""


def bundle_content(bundle: VerifiedBundle) -> dict[str, object]:
    """A bundle as data, for `documents.document`."""
    return {
        "path": bundle.path,
        "bundle_id": bundle.id,
        "signer": signer_content(bundle.signer),
        "bytes": bundle.path.stat().st_size,
        "emulated": _emulated(bundle.manifest),
        "manifest": msgspec.to_builtins(bundle.manifest),
    }


def signer_content(signer: PublicKey) -> dict[str, str]:
    """A key as data."""
    return {"key": signer.line, "fingerprint": signer.fingerprint}


def bundle_text(bundle: VerifiedBundle, width: int = 0) -> str:
    """What is in a bundle, where it came from and who signed it; `width` as for `table`."""
    said = bundle.manifest
    fits = said.compatibility
    mark = f" ({EMULATED})" if _emulated(said) else ""
    facts = [
        ("bundle", bundle.id),
        ("signed by", bundle.signer.fingerprint),
        ("counter", f"{said.counter}{_as_date(said.counter)}"),
        ("made by version", said.tool_version),
        ("boards", ", ".join(fits.boards)),
        ("machines", ", ".join(fits.machines) or "any"),
        ("memory", _bytes(fits.memory_bytes)),
        *((f"input {spec.name}", _tensor(spec)) for spec in said.inputs),
        *((f"output {spec.name}", _tensor(spec)) for spec in said.outputs),
        ("self-test", f"largest relative error {said.golden.rtol:g}"),
        *((f"note {name}", _value(value)) for name, value in sorted(said.notes.items())),
    ]
    sizes = [[part.path, _bytes(part.size_bytes), part.sha256[:12]] for part in said.parts]
    return "\n\n".join([
        f"{said.name}: {bundle.path}, {_bytes(bundle.path.stat().st_size)}",
        "\n".join(named(facts)),
        *(_variant_text(variant, mark, width) for variant in said.variants),
        table(["part", "size", "SHA-256"], sizes, width=width, optional=(2,)),
    ])  # fmt: skip


def _variant_text(variant: AnyVariant, mark: str, width: int) -> str:
    facts = [(name, _value(value)) for name, value in _plain(variant).items() if value not in ("", ())]
    rows = [
        [
            kernel.operator or kernel.operator_key[:12],
            "tuned" if kernel.tuned else "default",
            str(len(kernel.layers)),
            time_text(kernel.seconds),
            time_text(kernel.default_seconds),
            str(kernel.trials),
        ]
        for kernel in variant.kernels
    ]
    headers = ["operator", "schedule", "layers", f"time{mark}", f"default{mark}", "trials"]
    kernels = table(headers, rows, left=2, width=width, optional=(5, 2))
    return "\n".join([f"variant {variant.target} ({variant.kind})", *named(facts), "", kernels])


def bundle_changes(before: VerifiedBundle, after: VerifiedBundle) -> BundleChanges:
    """What is different in `after`; the times of the same schedule may differ, too."""
    old, new = before.manifest, after.manifest
    signers = ({"signer": before.signer.fingerprint}, {"signer": after.signer.fingerprint})
    facts = [*_changes(_plain(old), _plain(new)), *_changes(*signers)]
    kernels: list[KernelChange] = []
    were, are = ({variant.target: variant for variant in said.variants} for said in (old, new))
    for target in _both(were, are):
        first, second = were.get(target), are.get(target)
        plains = [_plain(variant) if variant else {} for variant in (first, second)]
        facts += [
            Change(f"{target}: {item.name}", item.before, item.after)
            for item in _changes(plains[0], plains[1])
        ]
        kernels += _kernel_changes(
            target, *(variant.kernels if variant else () for variant in (first, second))
        )
    hashes = [{part.path: part.sha256 for part in said.parts} for said in (old, new)]
    sizes = [{part.path: part.size_bytes for part in said.parts} for said in (old, new)]
    parts = [
        Change(item.name, sizes[0].get(item.name), sizes[1].get(item.name)) for item in _changes(*hashes)
    ]
    return BundleChanges(tuple(facts), tuple(kernels), tuple(parts), _emulated(old) or _emulated(new))


def changes_text(changes: BundleChanges, width: int = 0) -> str:
    """The changes in three tables, those left out in which there are none."""
    mark = f" ({EMULATED})" if changes.emulated else ""
    sections = []
    if changes.facts:
        rows = [[item.name, _value(item.before), _value(item.after)] for item in changes.facts]
        sections.append(table(["what", "before", "after"], rows, left=3, width=width))
    if changes.kernels:
        several = len({item.target for item in changes.kernels}) > 1
        rows = [
            [
                f"{item.target}: {item.operator}" if several else item.operator,
                _kind(item),
                "; ".join(
                    f"{knob.name} {_value(knob.before)} -> {_value(knob.after)}" for knob in item.schedule
                ),
                time_text(item.before.seconds if item.before else None),
                time_text(item.after.seconds if item.after else None),
            ]
            for item in changes.kernels
        ]
        headers = ["operator", "kernel", "schedule", f"before{mark}", f"after{mark}"]
        sections.append(table(headers, rows, left=3, width=width))
    if changes.parts:
        rows = [[item.name, _size(item.before), _size(item.after)] for item in changes.parts]
        sections.append(table(["part with other contents", "before", "after"], rows, width=width))
    return "\n\n".join(sections) or "the bundles say the same and hold the same"


def _kind(change: KernelChange) -> str:
    if change.before is None or change.after is None:
        return "removed" if change.after is None else "added"
    return "other schedule" if change.schedule else "same schedule"


def _kernel_changes(
    target: str, before: Sequence[KernelProvenance], after: Sequence[KernelProvenance]
) -> Iterable[KernelChange]:
    were, are = ({kernel.operator_key: kernel for kernel in kernels} for kernels in (before, after))
    for key in _both(were, are):
        old, new = were.get(key), are.get(key)
        known = new or old
        if old != new and known is not None:
            knobs = _changes(old.configuration, new.configuration) if old and new else ()
            yield KernelChange(target, known.operator or key[:12], key, old, new, tuple(knobs))


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[Change]:
    return [
        Change(name, before.get(name), after.get(name))
        for name in _both(before, after)
        if before.get(name) != after.get(name)
    ]


def _both(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The names of either, in the order in which they stand."""
    return list(dict.fromkeys([*before, *after]))


def _plain(said: Manifest | AnyVariant) -> dict[str, Any]:
    """The facts of a manifest or a variant; those of inner objects as `inner.name`."""
    found: dict[str, Any] = {}
    for name in said.__struct_fields__:
        value = getattr(said, name)
        if name in APART:
            continue
        inner = msgspec.to_builtins(value)
        found |= (
            {f"{name}.{key}": item for key, item in inner.items()}
            if isinstance(inner, dict)
            else {name: inner}
        )
    return found


def _emulated(said: Manifest) -> bool:
    return bool(said.notes.get("emulated"))


def _value(value: object) -> str:
    match value:
        case None:
            return NOTHING
        case list() | tuple():
            return " ".join(_value(item) for item in value)
        case dict():
            return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
        case float():
            return f"{value:.6g}"
    return str(value)


def _size(value: object) -> str:
    return _bytes(value) if isinstance(value, int) else NOTHING


def _bytes(count: int) -> str:
    return mebibytes(count) if count >= 2**20 else f"{count} bytes"


def _tensor(spec: TensorSpec) -> str:
    shape = "x".join(map(str, spec.shape)) or "scalar"
    return f"{spec.dtype} {shape} {spec.layout}".rstrip()


def _as_date(counter: int) -> str:
    """What a counter says that is the seconds since 1970, as `tune` makes them."""
    if not 10**9 <= counter < 10**10:
        return ""
    return time.strftime(", %Y-%m-%d %H:%M:%S UTC", time.gmtime(counter))
