"""GroupEmbedding: a Keras layer that looks many features up in one op, and those that it does not pool in another."""

from __future__ import annotations

import collections.abc
import re
import typing

import keras
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier._src.lookup import padding
from tf_multitier._src.options import option_values
from tf_multitier._src.options.key_types import key_type
from tf_multitier.keras import keras_versions
from tf_multitier.keras import layer_ids
from tf_multitier.keras.layers import Embedding
from tf_multitier.keras.layers import is_training
from tf_multitier.keras.layers import RowsLayer
from tf_multitier.keras.layers import SERIALIZABLE
from tf_multitier.keras.layers import value_dtype
from tf_multitier.keras.layers import weight_names

# What a feature may say next to the name of its table.
_SETTINGS = ("combiner", "max_ids")


class _Feature(typing.NamedTuple):
    """What a group keeps of a feature: its table, how its ids are pooled, and the Embedding that describes the table."""

    output_dim: int
    embeddings_initializer: typing.Any
    mask_value: int | None
    combiner: typing.Any
    ev_option: typing.Any
    key_dtype: str
    partitions: int
    config: typing.Any  # of get_config, without the fields of every layer
    table: str
    max_ids: int | None = None

    @property
    def padding_key(self):
        """The key of mask_value in the table; None without padding."""
        key_dtype = key_type("key_dtype", self.key_dtype)
        return padding.key_of(key_dtype, self.mask_value, "mask_value")

    @property
    def is_masked(self):
        """Whether the values of the feature have a mask of Keras: padding that is pooled is left out."""
        return self.combiner is None and self.mask_value is not None

    @property
    def said(self):
        """The feature in get_config."""
        if self.combiner == self.config["combiner"] and self.max_ids is None:
            return self.table
        return {"table": self.table, "combiner": self.combiner, "max_ids": self.max_ids}

    @classmethod
    def of(cls, layer, table):
        """The _Feature of an Embedding with the table of this name."""
        own = cls._fields[: cls._fields.index("config")]
        full = layer.get_config()
        values = [getattr(layer, field) for field in own]
        return cls(*values, {key: full[key] for key in own}, table)


@SERIALIZABLE
class GroupEmbedding(RowsLayer):
    """Looks up many features in one op, and those without a combiner in a second one. Features may share a table.

        GroupEmbedding({"user": Embedding(16, combiner="mean"), "city": Embedding(8, combiner="mean")})
        GroupEmbedding(
            features={"item": "items", "history": {"table": "items", "combiner": "mean", "max_ids": 50}},
            tables={"items": Embedding(16)},
        )

    An update of a table has the gradients and counts of all its features.

    Args:
      features: {feature name: what it reads}, one of
        an Embedding, not yet used, or a dict of the arguments of one: a table of its own. Features with the same Embedding share it.
        the name of one of `tables`, or of a feature that has an Embedding: that table, pooled as it says.
        a dict of "table", such a name, "combiner" and "max_ids": the table, pooled by this combiner (None: not pooled). Of each row
        of ids, the first max_ids count; None: all.
      concat: True: one tensor [batch, sum of the output_dims], in the order of `features`; each feature needs a combiner. False: a dict
        of tensors, of which those without a combiner have a mask where they have padding.
      optimizer: see Embedding. The optimizers of the tables must be None, and they have no dtype of their own.
      tables: {table name: Embedding or dict of its arguments}; None: the features have all. Each is read by a feature. Of Embeddings
        in dicts of arguments, the combiner is "mean" if there is none. Names of tables, and of features that have one, become names
        of variables, so they consist of the characters A-Z, a-z, 0-9 and _.\\/>-

    Call arguments:
      inputs: {feature name: ids}, see Embedding. Other keys are ignored.
      weights: {feature name: weights}, see Embedding, of the features that have them.
    """

    def __init__(
        self,
        features: collections.abc.Mapping,
        concat: bool = False,
        optimizer: typing.Any = None,
        tables: collections.abc.Mapping | None = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.concat = option_values.boolean(f"layer '{self.name}': concat", concat)
        for what, given in (("features", features), ("tables", {} if tables is None else tables)):
            if not isinstance(given, collections.abc.Mapping) or (what == "features" and not given):
                raise TypeError(
                    f"layer '{self.name}': {what}: expected a dict with at least one {what[:-1]}, found {given!r}"
                )
        layers, table_of = self._layers_of(features, tables or {})
        # Not the layers themselves: they have no weights and are not built.
        self._tables = {name: _Feature.of(made, name) for name, made in layers.items()}
        self._features = {
            name: self._tables[table_of[name]]._replace(**self._own_settings(name, made))
            for name, made in features.items()
        }
        self._check_tables(layers, tables or {})
        for name, feature in self._features.items():
            if feature.combiner is None and self.concat:
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected a combiner with concat=True, found combiner=None"
                )
        for made in layers.values():
            made.group = self.name
        self.supports_masking = any(made.is_masked for made in self._features.values())

    def _layers_of(self, features, tables):
        """({table: Embedding}, {feature: table})."""
        layers = {
            name: self._layer_of(f"table '{name}'", made, "") for name, made in tables.items()
        }
        first = {id(made): name for name, made in tables.items() if isinstance(made, Embedding)}
        own: dict = {}  # {feature with an Embedding: its table}
        for name, made in features.items():
            if _is_reference(made):
                continue
            own[name] = first.setdefault(id(made), name) if isinstance(made, Embedding) else name
            if own[name] != name:
                continue
            if name in layers:
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected another name than that of a table, because it has an Embedding, "
                    "found the same: rename the feature, or the table"
                )
            layers[name] = self._layer_of(
                f"feature '{name}'", made, ", or the name of a table or of another feature"
            )
        known = own | {name: name for name in tables}
        table_of = {}
        for name, made in features.items():
            if not _is_reference(made):
                table_of[name] = own[name]
                continue
            asked = made if isinstance(made, str) else made["table"]
            if asked not in known:
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected the name of a table, or of a feature that has an Embedding, found "
                    f"{asked!r}{option_values.did_you_mean(asked, list(known))}"
                )
            table_of[name] = known[asked]
        unused = sorted(layers.keys() - set(table_of.values()))
        if unused:
            raise ValueError(
                f"layer '{self.name}': tables: expected a feature for each, found none for {unused}"
            )
        return layers, table_of

    def _own_settings(self, name, made):
        """What a feature says differently from its table, checked."""
        if not _is_reference(made) or isinstance(made, str):
            return {}
        where = f"layer '{self.name}': feature '{name}'"
        settings = {key: value for key, value in made.items() if key != "table"}
        for key in settings:
            option_values.one_of(f"{where}: settings next to 'table'", key, _SETTINGS)
        if settings.get("combiner") is not None:
            option_values.one_of(f"{where}: combiner", settings["combiner"], lookup.COMBINERS)
        if settings.get("max_ids") is not None:
            settings["max_ids"] = option_values.integer(f"{where}: max_ids", settings["max_ids"], 1)
        return settings

    def _check_tables(self, layers, tables):
        for name, made in layers.items():
            where = f"layer '{self.name}': {'table' if name in tables else 'feature'} '{name}'"
            if not re.fullmatch(r"[A-Za-z0-9_.\\/>-]+", str(name)):
                raise ValueError(
                    f"layer '{self.name}': expected names of features and tables of the characters A-Z, a-z, 0-9 and _.\\/>-, "
                    f"found {name!r}"
                )
            if made.dtype_policy.name != keras.config.dtype_policy().name:
                raise ValueError(
                    f"{where}: expected no dtype of its own, found {made.dtype_policy.name}: give dtype to the group, or value_dtype to "
                    "its ev_option"
                )
            if made.optimizer is not None:
                raise ValueError(
                    f"{where}: expected no optimizer of its own, found {made.optimizer!r}: give it to the group"
                )
            if not made.trainable or made.activity_regularizer is not None:
                raise ValueError(
                    f"{where}: expected trainable=True and no activity_regularizer of its own, found "
                    f"trainable={made.trainable} and activity_regularizer={made.activity_regularizer!r}: give them to the group, or "
                    "call the layer outside of a group"
                )
        paths: dict = {}
        for name, made in self._tables.items():
            for weight in weight_names(name, made.partitions):
                if paths.setdefault(weight, name) != name:
                    raise ValueError(
                        f"layer '{self.name}': expected features whose weights have different paths, found '{paths[weight]}' and "
                        f"'{name}' with '{weight}': a slash becomes _"
                    )

    def _layer_of(self, what, made, others):
        """The Embedding that describes a table. what: the table or feature that has it; others: what else it may be. For messages."""
        keras_versions.refuse(f"layer '{self.name}': {what}", made)
        if isinstance(made, collections.abc.Mapping):
            return Embedding(**{"combiner": "mean", **made})
        if (
            type(made) is not Embedding or made.built
        ):  # the group would not call what a subclass adds
            raise TypeError(
                f"layer '{self.name}': {what}: expected a tf_multitier.keras.Embedding, no subclass, that is not yet used, or "
                f"a dict of its arguments{others}, found {made!r}"
            )
        made.refuse_second_owner(f"layer '{self.name}': {what}")
        return made

    def _check_features(self, inputs):
        if not isinstance(inputs, collections.abc.Mapping):
            raise TypeError(
                f"layer '{self.name}': expected a dict of the features {list(self._features)}, found {type(inputs).__name__}"
            )
        missing = [name for name in self._features if name not in inputs]
        if missing:
            raise ValueError(
                f"layer '{self.name}': expected the features {list(self._features)}, found none of {missing}"
            )

    def build(self, input_shape: typing.Any = None) -> None:
        """Makes the embedding variable of each feature. The shapes of the inputs do not matter."""
        del input_shape
        if self.built:
            return
        variables = self._add_variables(self._tables)
        self.embeddings = {name: variables[made.table] for name, made in self._features.items()}
        for name, variable in variables.items():
            # tf.train.Checkpoint saves what attributes have. It does not look into dicts of Keras layers.
            setattr(self, f"embeddings_{name}", variable)
        self.built = True

    def call(
        self, inputs: typing.Any, training: bool | None = None, weights: typing.Any = None
    ) -> typing.Any:
        """Looks the ids of all features up. See the class for arguments and shapes.

        Raises:
          TypeError: `inputs` is not a dict.
          ValueError: a feature of the layer is not in `inputs`, or `weights` has another one.
        """
        self._check_features(inputs)
        weights = {} if weights is None else dict(weights)
        if not weights.keys() <= self._features.keys():
            raise ValueError(
                f"layer '{self.name}': weights: expected some of the features {list(self._features)}, found {list(weights)}"
            )
        ids = {name: layer_ids.integers(inputs[name], self.name) for name in self._features}
        each = [name for name, made in self._features.items() if made.combiner is None]
        if weights.keys() & set(each):
            raise ValueError(
                f"layer '{self.name}': weights: expected those of features with a combiner, found {sorted(weights.keys() & set(each))}"
            )
        pooled = [name for name in self._features if name not in each]
        values = self._pooled(pooled, ids, weights, training) if pooled else []
        if self.concat:
            return tf.cast(values, self.compute_dtype)
        found = dict(zip(pooled, values)) | self._of_each_id(each, ids, training)
        return {name: tf.cast(found[name], self.compute_dtype) for name in self._features}

    def _pooled(self, names, ids, weights, training):
        """A list of [batch, dim] for features with a combiner; with concat one tensor."""
        pooled = [layer_ids.pooled_ids(ids[name], f"{self.name}/{name}") for name in names]
        weights = [
            layer_ids.pooled_weights(weights.get(name), its, f"{self.name}/{name}")
            for name, its in zip(names, pooled)
        ]
        first = lambda its: [
            layer_ids.first(one, self._features[name].max_ids) for name, one in zip(names, its)
        ]
        return nn.group_embedding_lookup_sparse(
            [self.embeddings[name] for name in names],
            first(pooled),
            [self._features[name].combiner for name in names],
            first(weights),
            concat=self.concat,
            **self._how(names, training),
        )

    def _of_each_id(self, names, ids, training):
        """{feature without a combiner: ids.shape + [dim]}. Places of sparse ids without one are padding, or else id 0."""
        if not names:
            return {}
        ids = {
            name: layer_ids.to_dense(ids[name], self._features[name].mask_value)
            if isinstance(ids[name], tf.SparseTensor)
            else ids[name]
            for name in names
        }
        ids = {
            name: layer_ids.first(its, self._features[name].max_ids) for name, its in ids.items()
        }
        values = nn.group_embedding_lookup(
            [self.embeddings[name] for name in names],
            [getattr(its, "flat_values", its) for its in ids.values()],
            **self._how(names, training),
        )
        return {
            name: its.with_flat_values(found) if isinstance(its, tf.RaggedTensor) else found
            for (name, its), found in zip(ids.items(), values)
        }

    def _how(self, names, training):
        return {
            "training": is_training(self, training),
            "output_dtype": value_dtype(self.compute_dtype),
            "padding_idx": [self._features[name].mask_value for name in names],
        }

    def compute_output_spec(
        self, inputs: typing.Any, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """A keras.KerasTensor with the shape and type of the embeddings, or a dict of one per feature, computed without a lookup."""
        self._check_features(inputs)
        shapes = self.compute_output_shape(
            {name: layer_ids.shape_of(inputs[name]) for name in self._features}
        )
        spec = lambda shape: keras.KerasTensor(shape, dtype=self.compute_dtype)
        return spec(shapes) if self.concat else {name: spec(its) for name, its in shapes.items()}

    def compute_output_shape(self, input_shape: typing.Any) -> typing.Any:
        """The shape of the embeddings of {feature: shape of its ids}, or a dict of one per feature."""
        self._check_features(input_shape)
        shapes = {}
        for name, made in self._features.items():
            its = tuple(input_shape[name])
            if made.combiner is None:
                shapes[name] = (*layer_ids.shape_of_first(its, made.max_ids), made.output_dim)
            else:
                layer_ids.check_rank(its, f"{self.name}/{name}")
                shapes[name] = (its[0], made.output_dim)
        if not self.concat:
            return shapes
        batches, dims = zip(*shapes.values())
        return (batches[0], sum(dims))

    def compute_mask(self, inputs: typing.Any, mask: typing.Any = None) -> typing.Any:
        """{feature: see Embedding.compute_mask}; None if no feature has a mask."""
        if not self.supports_masking:
            return None
        return {
            name: layer_ids.first(
                layer_ids.mask(
                    inputs[name],
                    made.mask_value,
                    made.padding_key,
                    f"{self.name}/{name}",
                ),
                made.max_ids,
            )
            if made.is_masked
            else None
            for name, made in self._features.items()
        }

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "features": {name: made.said for name, made in self._features.items()},
            "concat": self.concat,
            "tables": {name: dict(made.config) for name, made in self._tables.items()},
        }


def _is_reference(feature):
    """Whether a feature reads a table that another entry describes."""
    return isinstance(feature, str) or (
        isinstance(feature, collections.abc.Mapping) and "table" in feature
    )
