"""GroupEmbedding: a Keras layer that looks many features up in one op, and those that it does not pool in another."""

from __future__ import annotations

import collections.abc
import re
import typing

import keras
import tensorflow as tf

from tf_multitier import nn
from tf_multitier import padding
from tf_multitier.keras import keras_versions
from tf_multitier.keras import layer_ids
from tf_multitier.keras.layers import Embedding
from tf_multitier.keras.layers import RowsLayer
from tf_multitier.keras.layers import SERIALIZABLE
from tf_multitier.keras.layers import value_dtype
from tf_multitier.keras.layers import weight_names
from tf_multitier.key_types import key_type


class _Feature(typing.NamedTuple):
    """What a group keeps of the Embedding of one feature."""

    output_dim: int
    embeddings_initializer: typing.Any
    mask_value: int | None
    combiner: typing.Any
    ev_option: typing.Any
    key_dtype: str
    partitions: int
    config: typing.Any  # of get_config, without the fields of every layer

    @property
    def padding_key(self):
        """The key of mask_value in the table; None without padding."""
        key_dtype = key_type("key_dtype", self.key_dtype)
        return padding.key_of(key_dtype, self.mask_value, "mask_value")

    @property
    def is_masked(self):
        """Whether the values of the feature have a mask of Keras: padding that is pooled is left out."""
        return self.combiner is None and self.mask_value is not None

    @classmethod
    def of(cls, layer):
        """The _Feature of an Embedding."""
        values = [getattr(layer, field) for field in cls._fields[:-1]]
        own = (*cls._fields[:-1],)
        full = layer.get_config()
        return cls(*values, {key: full[key] for key in own})


@SERIALIZABLE
class GroupEmbedding(RowsLayer):
    """Looks up many features in one op, and those without a combiner in a second one. Each feature has a table, or shares that of another.

    Args:
      features: {feature name: Embedding, not yet used, or dict of the arguments of one, or name of another feature}. Features with
        the same Embedding, and a feature with the name of another, have one table: an update of it has the gradients and counts of
        all of them. A dict without a combiner has "mean". Names become names of variables, so they consist of the characters A-Z, a-z,
        0-9 and _.\\/>-
      concat: True: one tensor [batch, sum of the output_dims], in the order of `features`; each feature needs a combiner. False: a dict
        of tensors, of which those without a combiner have a mask where they have padding.
      optimizer: see Embedding. The optimizers of the features must be None, and they have no dtype of their own.

    Call arguments:
      inputs: {feature name: ids}, see Embedding. Other keys are ignored.
      weights: {feature name: weights}, see Embedding, of the features that have them.
    """

    def __init__(
        self,
        features: collections.abc.Mapping,
        concat: bool = False,
        optimizer: typing.Any = None,
        **kwargs: typing.Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.concat = bool(concat)
        if not isinstance(features, collections.abc.Mapping) or not features:
            raise TypeError(
                f"layer '{self.name}': features: expected a dict with at least one feature, found {features!r}"
            )
        self._owners = self._owners_of(features)
        layers = {name: self._layer_of(name, features[name]) for name in self._owners.values()}
        # Not the layers themselves: they have no weights and are not built.
        made_once = {name: _Feature.of(made) for name, made in layers.items()}
        self._features = {name: made_once[owner] for name, owner in self._owners.items()}
        for name, made in layers.items():
            if not re.fullmatch(r"[A-Za-z0-9_.\\/>-]+", str(name)):
                raise ValueError(
                    f"layer '{self.name}': expected names of features of the characters A-Z, a-z, 0-9 and _.\\/>-, "
                    f"found {name!r}"
                )
            if made.dtype_policy.name != keras.config.dtype_policy().name:
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected no dtype of its own, found {made.dtype_policy.name}: give dtype to "
                    "the group, or value_dtype to the feature's ev_option"
                )
            if made.optimizer is not None or (made.combiner is None and self.concat):
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected no optimizer of its own, and a combiner with concat=True, found "
                    f"optimizer={made.optimizer!r} and combiner={made.combiner!r}"
                )
            if not made.trainable or made.activity_regularizer is not None:
                raise ValueError(
                    f"layer '{self.name}': feature '{name}': expected trainable=True and no activity_regularizer of its own, found "
                    f"trainable={made.trainable} and activity_regularizer={made.activity_regularizer!r}: give them to the group, or "
                    "call the layer outside of a group"
                )

        paths: dict = {}
        for name, made in made_once.items():
            for weight in weight_names(name, made.partitions):
                if paths.setdefault(weight, name) != name:
                    raise ValueError(
                        f"layer '{self.name}': expected features whose weights have different paths, found '{paths[weight]}' and "
                        f"'{name}' with '{weight}': a slash becomes _"
                    )
        for made in layers.values():
            made.group = self.name
        self.supports_masking = any(made.is_masked for made in made_once.values())

    def _owners_of(self, features):
        """{feature: the feature whose table it reads, often itself}."""
        first: dict = {}  # {id of an Embedding: the first feature that has it}
        owners = {
            name: first.setdefault(id(made), name) if isinstance(made, Embedding) else name
            for name, made in features.items()
        }
        for name, other in features.items():
            if isinstance(other, str):
                if isinstance(features.get(other, other), str):
                    raise ValueError(
                        f"layer '{self.name}': feature '{name}': expected the name of a feature that has an Embedding, found {other!r}"
                    )
                owners[name] = owners[other]
        return owners

    def _layer_of(self, name, made):
        """The Embedding that stands for a feature."""
        keras_versions.refuse(f"layer '{self.name}': feature '{name}'", made)
        if isinstance(made, collections.abc.Mapping):
            return Embedding(**{"combiner": "mean", **made})
        if (
            type(made) is not Embedding or made.built
        ):  # the group would not call what a subclass adds
            raise TypeError(
                f"layer '{self.name}': feature '{name}': expected a tf_multitier.keras.Embedding, no subclass, that is not yet used, or "
                f"a dict of its arguments, or the name of another feature, found {made!r}"
            )
        made.refuse_second_owner(f"layer '{self.name}': feature '{name}'")
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
        variables = self._add_variables({n: self._features[n] for n in self._owners.values()})
        self.embeddings = {name: variables[owner] for name, owner in self._owners.items()}
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
        ids = [layer_ids.pooled_ids(ids[name], f"{self.name}/{name}") for name in names]
        return nn.group_embedding_lookup_sparse(
            [self.embeddings[name] for name in names],
            ids,
            [self._features[name].combiner for name in names],
            [
                layer_ids.pooled_weights(weights.get(name), its, f"{self.name}/{name}")
                for name, its in zip(names, ids)
            ],
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
            "training": training is not False,
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
                shapes[name] = (*its, made.output_dim)
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
            name: layer_ids.mask(
                inputs[name],
                made.mask_value,
                made.padding_key,
                f"{self.name}/{name}",
            )
            if made.is_masked
            else None
            for name, made in self._features.items()
        }

    def get_config(self) -> dict:
        features = {
            name: dict(self._features[name].config) if owner == name else owner
            for name, owner in self._owners.items()
        }
        return {**super().get_config(), "features": features, "concat": self.concat}
