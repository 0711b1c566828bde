"""Cost: work in units of one plain forward + backward of one example, so that methods compare across machines.

A backward pass does about twice the arithmetic of a forward pass. An input counts by its share of the full picture's
pixels, or of its tokens, and a composite is one input however many examples it shows.
"""

from __future__ import annotations

FORWARD = 1 / 3
BACKWARD = 2 / 3


def training_cost(inputs: float, pixels: float = 1.0) -> float:
    """The cost of a forward and a backward pass over that many inputs of that share of the full size."""
    return inputs * pixels * (FORWARD + BACKWARD)


def scoring_cost(inputs: float, pixels: float = 1.0) -> float:
    """The cost of a forward pass alone, to see a loss before deciding on it."""
    return inputs * pixels * FORWARD
