"""Names of DeepRec that do not work here. Using one raises an error that says what to do instead.

If the name were absent, the program would get TensorFlow's AttributeError or ImportError, without advice. `REFUSED` lists the place and
the advice of each name. Importing a name, or testing for it with hasattr, raises no error, because programs also import names that they
use only for some options.
"""

import contextlib

_HASH_TABLE = "use tf.get_embedding_variable, whose rows TensorFlow's lookups and optimizers take"
_NO_DENSE_TABLE = "use tf.nn.safe_embedding_lookup_sparse, which takes ids of any rank"
_KAFKA = "read the topic with a Kafka client of Python in tf.data.Dataset.from_generator"
_SCOPES = "use tf.feature_column.group_embedding_column_scope, whose columns share one lookup"

# {module: {name: what to do instead}}. Some modules are TensorFlow's, name_map.py makes the others.
REFUSED = {
    "tensorflow": {
        "hash_table": _HASH_TABLE,
        "get_hash_table": _HASH_TABLE,
        "SessionGroup": "use one tf.Session; threads may call its run() at the same time and share its variables",
        "graph_optimizer": "leave enable_sample_awared_graph_compression out and give every example its user's features",
        "TableRecordReader": "MaxCompute tables cannot be read; export them to files for tf.data, for example as Parquet",
    },
    "tensorflow.data": {"KafkaDataset": _KAFKA, "KafkaGroupIODataset": _KAFKA},
    "tensorflow.feature_column": {
        "coalesced_embedding_scope": _SCOPES,
        "multi_hash_embedding_column": "use embedding_column over categorical_column_with_multihash",
        "shared_embedding_column": "use shared_embedding_columns, which takes a list of columns",
    },
    "tensorflow.nn": {
        "safe_embedding_lookup_multi_dim": _NO_DENSE_TABLE,
        "embedding_lookup_sparse_multi_dim": _NO_DENSE_TABLE,
        "safe_adaptive_embedding_lookup_sparse": "use categorical_column_with_adaptive_embedding and input_layer(adaptive_mask_tensors=)",
    },
    "tensorflow.contrib.layers": {
        "sparse_column_with_dynamic_dimension_embedding": "use tf.get_dynamic_dimension_embedding_variable and tf.nn.embedding_lookup("
        "..., blocknums=)",
        "sequence_input_from_feature_columns": "use tf.contrib.feature_column.sequence_input_layer",
    },
}


class NameRefused(NotImplementedError, AttributeError):
    """A program used a name of DeepRec that does not work here. It is an AttributeError, so that hasattr returns False."""


class RefusedName:
    """A placeholder for a refused name. It can be imported and passed on. Calling it, subclassing it or reading an attribute fails."""

    def __init__(self, name, instead):
        self.__name__ = name
        self._message = f"{name} is not supported: {instead}"

    def _refuse(self):
        raise NameRefused(self._message)

    def __call__(self, *args, **kwargs):
        self._refuse()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __mro_entries__(self, bases):
        self._refuse()

    def __repr__(self):
        return f"<refused: {self._message}>"


def of(place):
    """{name: RefusedName} of one module."""
    return {
        name: RefusedName(f"{place.replace('tensorflow', 'tf', 1)}.{name}", instead)
        for name, instead in REFUSED[place].items()
    }


@contextlib.contextmanager
def stream(stream_id=0):
    """`tf.stream`, without effect. In DeepRec it chooses a CUDA stream for the ops that are made inside, which affects speed only."""
    del stream_id
    yield
