"""docs/operators.md from what became of onnx's node cases: a row for each operator that has any."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import onnx

from tests.conformance.node_cases import SIZES, node_cases

MOST_LIMITS = 3  # in a row, the most frequent ones
MOST_LETTERS = 110
HEAD = """# Operators

Made by `make golden` from the node cases of the onnx package {version}: {passed} of {all} pass through
import, generated code and comparison; each of the others is refused, for the reason given here; none is
wrong. The first input of a case that passes is given at run time; shapes, axes and weights may be stored in
the model, and all inputs of {sizes} cases of operators that make a constant of sizes, such as Range. Cases
that spell a definition out by other operators count for the operator defined.
[models.md](models.md) says what becomes of operators.

| operator | since opsets | cases | refused are |
|---|---|---|---|
"""


def document(results: Mapping[str, str]) -> str:
    """The page for what became of each case: its name -> "passed" or "refused: ..."."""
    operators = {case.name: case.model.graph.node[0].op_type for case in node_cases([""])}
    by_operator: defaultdict[str, list[str]] = defaultdict(list)
    for name, result in results.items():
        base = re.sub(r"_expanded(_ver\d+)?$", "", name)
        by_operator[operators.get(base, operators[name])].append(result)
    passed = sum(result == "passed" for result in results.values())
    rows = [_row(operator, found) for operator, found in sorted(by_operator.items())]
    sizes = sum(name.startswith(SIZES) for name, result in results.items() if result == "passed")
    return (
        HEAD.format(version=onnx.__version__, passed=passed, all=len(results), sizes=sizes)
        + "\n".join(rows)
        + "\n"
    )


def _row(operator: str, found: list[str]) -> str:
    passed = found.count("passed")
    reasons = Counter(_reason(result) for result in found if result != "passed")
    limits = "; ".join(reason for reason, _ in reasons.most_common(MOST_LIMITS))
    return f"| {operator} | {_opsets(operator)} | {passed} of {len(found)} | {limits} |"


def _opsets(operator: str) -> str:
    known = {item.since_version for item in onnx.defs.get_all_schemas_with_history() if item.name == operator}
    return ", ".join(str(version) for version in sorted(known))


def _reason(result: str) -> str:
    """What is wrong, without names, numbers of nodes and advice."""
    text = result.removeprefix("refused: ").splitlines()
    line = text[1] if len(text) > 1 else text[0]
    line = re.sub(r"^.*?nodes? '.*?' \(", "(", line) if "(" in line else line
    line = re.sub(r"'[^']*' ?|\(input \)", "", line).split(";")[0].strip()
    return line[:MOST_LETTERS].replace("|", "/")
