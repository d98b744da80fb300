"""Made-up turns, series and cases for the tests of what is computed from them."""

from __future__ import annotations

from benchmarks.kernels.results import Case, Report, Sample, Series

FLOPS = 1_000_000


def turn(seconds: float, kept: int = 5) -> Sample:
    return Sample(seconds=seconds, kept=kept, disturbed=0)


def series(
    library: str,
    variant: str,
    *rounds: Sample | None,
    work: float = FLOPS,
    facts: dict[str, str | float] | None = None,
) -> Series:
    return Series(library=library, variant=variant, error=1e-7, work=work, facts=facts or {}, rounds=rounds)


def steady(
    library: str,
    variant: str,
    seconds: float,
    *,
    work: float = FLOPS,
    facts: dict[str, str | float] | None = None,
) -> Series:
    """Three equal rounds."""
    return series(library, variant, *[turn(seconds)] * 3, work=work, facts=facts)


def case(*found: Series, workload: str = "C6", suite: str = "conv", threads: int = 1) -> Case:
    return Case(
        workload=workload,
        suite=suite,
        shape="a shape",
        threads=threads,
        flops=FLOPS,
        bytes_once=10_000,
        series=found,
        not_measured={"litert": "no Python at nowhere"},
    )


def report(*cases: Case, complete: bool = True) -> Report:
    return Report(
        started="2026-01-01T00:00:00+00:00",
        machine={"model": "a CPU", "load": "0.1"},
        plan={"rounds": 3},
        libraries={"torch": {"torch": "2.13"}, "ours": {"measurements": "7", "target": "one core"}},
        complete=complete,
        cases=cases,
    )
