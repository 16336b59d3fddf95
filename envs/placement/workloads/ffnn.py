"""FFNN: a feed-forward network with one hidden layer and a softmax, softmax(relu(X W1) W2)."""

from __future__ import annotations

from ..graph import DataflowGraph
from .normalisation import softmax
from .sharded_tensor import balanced_factors
from .tensor_program import Combine, TensorProgram


def ffnn(
    batch: int = 2**15,
    features: int = 2**5,
    hidden: int = 2**16,
    outputs: int = 2**5,
    devices: int = 4,
    shards: int | None = None,
    dtype: str = "float32",
    combine: Combine = "single",
) -> DataflowGraph:
    """softmax(relu(X W1) W2) with X [batch, features]; each operation in ``shards`` pieces.

    The default is the published graph (180 operations, 12 input tiles). The number of shards (4 per
    device) is split into two balanced factors: pieces of the batch and pieces of the hidden dimension.
    The softmax, whose rows are independent, cuts the batch into as many pieces as there are shards.
    The 8-device form has 8 by 4 pieces.
    """
    count = shards or 4 * devices
    rows, inner = balanced_factors(count, 2)
    program = TensorProgram(combine=combine, form_singles=True)
    x = program.input("x", (batch, features), (rows, 1), dtype)
    w1 = program.input("w1", (features, hidden), (1, inner), dtype, "parameter")
    w2 = program.input("w2", (hidden, outputs), (inner, 1), dtype, "parameter")
    program.layer = 0
    activation = program.elementwise("aten.relu.default", program.product(x, w1, name="hidden"))
    program.layer = 1
    scores = program.product(activation, w2, name="output")
    program.layer = 2
    return program.finish({"probabilities": softmax(program, scores, cuts=(count, 1))}, title="ffnn")
