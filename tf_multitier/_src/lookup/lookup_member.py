"""What a lookup asks of one variable."""

import collections

# The op's inputs and attributes for one member.
#   where: the member's name in error messages.
#   source: "table" (parts are EmbeddingVariables), "variable" (resource variables) or "tensor" (values).
#   keys, indices, shape, weights, tables: tensors; all but keys may be None. tables: int64, shaped as the keys.
#   form: as the op's attribute `forms`.
#   variable: the embedding variable, or None.
Member = collections.namedtuple(
    "Member",
    [
        "where",
        "source",
        "parts",
        "variable",
        "dim",
        "strategy",
        "form",
        "combiner",
        "max_norm",
        "keys",
        "indices",
        "shape",
        "weights",
        "tables",
    ],
    defaults=[None],
)
