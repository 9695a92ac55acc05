"""DeepRec's option classes where ours lack arguments of theirs, and DeepRec's `tf.get_embedding_variable`.

What has no effect here is taken and not used. What would change results is refused.
"""

import tensorflow as tf

import tf_multitier

# DeepRec's layouts of a row in memory.
_LAYOUTS = ("normal", "light", "compact", "normal_contiguous")


class StorageOption(tf_multitier.StorageOption):
    """`tf_multitier.StorageOption` with DeepRec's `layout`, which has no effect: rows have one layout."""

    def __init__(
        self,
        storage_type=None,
        storage_path=None,
        storage_size=None,
        cache_strategy=None,
        layout=None,
        **ours,
    ):
        if layout not in (None, *_LAYOUTS):
            raise ValueError(
                f"StorageOption.layout: expected None or one of {', '.join(_LAYOUTS)}, found {layout!r}"
            )
        super().__init__(storage_type, storage_path, storage_size, cache_strategy, **ours)


class CheckpointOption:
    """Names the checkpoint that one variable is loaded from. `EmbeddingVariableOption(ckpt=)` refuses it."""

    def __init__(
        self,
        ckpt_to_load_from=None,
        tensor_name_in_ckpt=None,
        always_load_from_specific_ckpt=False,
        init_data_source=None,
    ):
        self.ckpt_to_load_from = ckpt_to_load_from
        self.tensor_name_in_ckpt = tensor_name_in_ckpt
        self.always_load_from_specific_ckpt = always_load_from_specific_ckpt
        self.init_data_source = init_data_source

    def __repr__(self):
        return f"CheckpointOption(ckpt_to_load_from={self.ckpt_to_load_from!r})"


# {DeepRec's name of an attribute: ours}.
_ATTRIBUTES = {"filter_strategy": "filter_option", "evict": "evict_option", "init": "init_option"}


def _refuse_ckpt(value):
    raise ValueError(
        f"EmbeddingVariableOption.ckpt: expected None, found {value!r}: restore the variable with "
        "tf.compat.v1.train.Saver"
    )


class EmbeddingVariableOption(tf_multitier.EmbeddingVariableOption):
    """`tf_multitier.EmbeddingVariableOption`, its arguments in DeepRec's order.

    Options can also be set as attributes, by DeepRec's names of them: `filter_strategy`, `evict`, `init`, `storage_option`.

    Args:
      ht_type, ht_partition_num: not used. There is one kind of index, and it has its own shards.
      ckpt: must be None.
      others: see there.

    Raises:
      ValueError: where `ckpt` is given.
    """

    def __init__(
        self,
        ht_type="",
        ht_partition_num=1000,
        evict_option=None,
        ckpt=None,
        filter_option=None,
        storage_option=None,
        init_option=None,
    ):
        del ht_type, ht_partition_num
        self.ckpt = ckpt
        super().__init__(
            evict_option=evict_option,
            filter_option=filter_option,
            storage_option=storage_option,
            init_option=init_option,
        )

    def __setattr__(self, name, value):
        if name == "ckpt" and value is not None:
            _refuse_ckpt(value)
        if name not in ("ckpt", "ht_type", "ht_partition_num"):
            super().__setattr__(_ATTRIBUTES.get(name, name), value)

    def __getattr__(self, name):
        if name in _ATTRIBUTES:
            return getattr(self, _ATTRIBUTES[name])
        raise AttributeError(f"EmbeddingVariableOption has no attribute {name!r}")


def get_embedding_variable(
    name,
    embedding_dim,
    key_dtype=tf.int64,
    value_dtype=None,
    initializer=None,
    regularizer=None,
    trainable=True,
    collections=None,
    caching_device=None,
    partitioner=None,
    validate_shape=True,
    custom_getter=None,
    constraint=None,
    steps_to_live=None,
    init_data_source=None,
    ev_option=None,
):
    """`tf_multitier.get_embedding_variable`, its arguments in DeepRec's order.

    Args:
      regularizer, caching_device, constraint, init_data_source: must be None.
      validate_shape: not used.
      others: see there.

    Raises:
      ValueError: for an argument that must be None and is not.
    """
    del validate_shape
    for argument, value in (
        ("regularizer", regularizer),
        ("caching_device", caching_device),
        ("constraint", constraint),
        ("init_data_source", init_data_source),
    ):
        if value is not None:
            instead = (
                "restore the variable with tf.compat.v1.train.Saver"
                if argument == "init_data_source"
                else "it is not supported"
            )
            raise ValueError(
                f"embedding variable '{name}': {argument}: expected None, found {value!r}: {instead}"
            )
    return tf_multitier.get_embedding_variable(
        name,
        embedding_dim,
        key_dtype,
        value_dtype,
        initializer=initializer,
        trainable=trainable,
        collections=collections,
        partitioner=partitioner,
        custom_getter=custom_getter,
        steps_to_live=steps_to_live,
        ev_option=ev_option,
    )
