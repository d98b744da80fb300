"""What operators compute. Start at `evaluate`; contraction.py has the fast way of sums of products."""

from cross.expression.reference.evaluator import evaluate
