"""get_embedding_variable: creates or reuses embedding variables in TensorFlow's variable scopes."""

from __future__ import annotations

import collections.abc
import functools
import numbers
import typing

import tensorflow as tf

from tf_multitier import options
from tf_multitier._src.execution import eager
from tf_multitier._src.execution import graph_state
from tf_multitier._src.options import initializers
from tf_multitier._src.options import key_types
from tf_multitier._src.options import option_record
from tf_multitier._src.options import storage_option
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.processes import strategies
from tf_multitier._src.processes import world
from tf_multitier._src.tensorflow.internals import eager_seed
from tf_multitier._src.tensorflow.internals import explain_errors
from tf_multitier._src.tensorflow.internals import look_for_the_chief_every
from tf_multitier._src.tensorflow.internals import name_from_scope_name
from tf_multitier._src.variable import embedding_variable
from tf_multitier._src.variable import world_parts
from tf_multitier._src.variable.embedding_variable import make_eager_variable
from tf_multitier._src.variable.embedding_variable import make_variable
from tf_multitier._src.variable.partitioned import GraphPartitions
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.partitioned import OwnedPartitions
from tf_multitier._src.variable.partitioned import PartitionedEmbeddingVariable
from tf_multitier._src.variable.partitioned import StoredParts
from tf_multitier._src.variable.read_only import is_in_place
from tf_multitier._src.variable.read_only import is_read_only
from tf_multitier._src.variable.saver import NUM_BUCKETS

MAX_DIM = 2**20  # of a column of the engine


def _check_arguments(name, embedding_dim, key_dtype):
    if not isinstance(name, str) or not name:
        raise TypeError(f"name of embedding variable: expected a non-empty string, found {name!r}")
    if isinstance(embedding_dim, bool) or not isinstance(embedding_dim, numbers.Integral):
        raise TypeError(
            f"embedding variable '{name}': embedding_dim: expected an integer, found {embedding_dim!r}"
        )
    if embedding_dim < 1:
        raise ValueError(
            f"embedding variable '{name}': embedding_dim: expected at least 1, found {embedding_dim}"
        )
    if embedding_dim > MAX_DIM:
        raise ValueError(
            f"embedding variable '{name}': embedding_dim: expected at most {MAX_DIM}, found {embedding_dim}"
        )
    where = f"embedding variable '{name}': key_dtype"
    return int(embedding_dim), key_types.key_type(where, key_dtype)


def _value_type(name, value_dtype, option):
    """The type of a variable's values, from the argument and the option."""
    where = f"embedding variable '{name}'"
    asked = options.value_type(f"{where}: value_dtype", value_dtype or tf.float32)
    found = asked if option.value_dtype is None else tf.as_dtype(option.value_dtype)
    if asked not in (tf.float32, found):
        raise ValueError(
            f"{where}: value_dtype: expected {found.name}, as EmbeddingVariableOption.value_dtype, found {asked.name}"
        )
    return found


def option_in_force(name, ev_option, steps_to_live):
    """The EmbeddingVariableOption that results from `ev_option` (or None) and DeepRec's older `steps_to_live` (or None)."""
    if ev_option is not None and not isinstance(ev_option, options.EmbeddingVariableOption):
        raise TypeError(
            f"embedding variable '{name}': ev_option: expected EmbeddingVariableOption or None, found {ev_option!r}"
        )
    option = ev_option or options.EmbeddingVariableOption()
    if steps_to_live is None:
        return option
    if option.evict_option:
        raise ValueError(
            f"embedding variable '{name}': expected steps_to_live or ev_option.evict_option, found both: "
            f"steps_to_live={steps_to_live!r} and {list(option.evict_option)}"
        )
    return options.EmbeddingVariableOption(
        evict_option=options.GlobalStepEvict(steps_to_live),
        filter_option=option.filter_option,
        storage_option=option.storage_option,
        init_option=option.init_option,
        score=option.score,
        value_dtype=option.value_dtype,
        stochastic_rounding=option.stochastic_rounding,
    )


def _number_of_partitions(name, partitioner, dim):
    if partitioner is None:
        return 1
    if not callable(partitioner):
        raise TypeError(
            f"embedding variable '{name}': partitioner: expected a function or None, found {partitioner!r}"
        )
    parts = list(partitioner(shape=tf.TensorShape([NUM_BUCKETS, dim]), dtype=tf.float32))
    if len(parts) != 2 or parts[1] != 1 or not 1 <= parts[0] <= NUM_BUCKETS:
        raise ValueError(
            f"embedding variable '{name}': partitioner: expected [n, 1] with n from 1 to {NUM_BUCKETS}, found {parts}"
        )
    # TensorFlow's fixed_size_partitioner makes at most one part per row. Call it with one more row to see if it wants more parts.
    if (
        parts[0] == NUM_BUCKETS
        and partitioner(shape=tf.TensorShape([NUM_BUCKETS + 1, dim]), dtype=tf.float32)[0]
        > NUM_BUCKETS
    ):
        raise ValueError(
            f"embedding variable '{name}': partitioner: expected [n, 1] with n from 1 to {NUM_BUCKETS}, found one that makes "
            "more partitions"
        )
    return int(parts[0])


def _initial(full_name, dim, initializer, option, its_world):
    """(what rows begin with, the seed of a new table). In a world, the same in all processes."""
    value = initializers.initial_value(
        initializer, full_name, dim, option.init_option.default_value_dim
    )
    is_eager = tf.executing_eagerly()
    its_seed = eager_seed() if is_eager else tf.compat.v1.get_default_graph().seed
    seed = initializers.table_seed(value.seed, its_seed, full_name)
    if its_world is not None and is_eager:  # Keras draws another one in each process
        seed = its_world.bits_of_first(seed)
        value = value if value.seed is None else value._replace(seed=seed)
        value = initializers.with_seeds_of_tables(value, its_world.bits_of_first)
    return value, seed


def _attrs(full_name, dim, key_dtype, value_dtype, value, seed, option):
    """The attrs of the ops that make a variable of one part."""
    storage = option.storage_option or storage_option.storage_option_from_environment()
    values = {
        **options.record_of(full_name, option, storage, seed),
        "initializer": initializers.initializer_record(value, seed),
        "initializers": initializers.tables_record(value, seed),
        "read_only": is_read_only(),
        "in_place": is_in_place() and storage.keep,
    }
    checked = option_record.check(
        values,
        lambda message: f"embedding variable '{full_name}': {message}",
        value_dtype=value_dtype.name,
    )
    return dict(
        dtype=value_dtype,
        key_dtype=key_dtype,
        shape=[0, dim],
        options=option_record.text_of(checked, value_dtype=value_dtype.name),
        partition_index=0,
        num_partitions=1,
    )


def _whole(full_name, parts, its_world=None):
    """The variable of these parts, of which a v1 graph keeps note."""
    if tf.executing_eagerly():
        whole = OwnedPartitions(full_name, parts)
    else:
        whole = GraphPartitions(full_name, parts)
        graph_state.state_of(whole.graph).partitioned[full_name] = whole
    if its_world is not None:
        whole.world = its_world
    return whole


def _make(
    full_name,
    dim,
    key_dtype,
    value_dtype,
    initializer,
    option,
    num_partitions,
    trainable,
    collections,
    servers,
):
    """Creates the variable with that full name (including scopes), partitioned or not.

    servers: the ParameterServerStrategy on whose servers the parts are, or None.
    """
    trainable = trainable and not is_read_only()
    its_world = None if is_read_only() else world.current()
    if its_world is not None and num_partitions not in (1, its_world.size):
        raise ValueError(
            f"embedding variable '{full_name}': partitioner: expected none, or one of {its_world.size} parts, one for each process "
            f"of the CollectiveStrategy, found one of {num_partitions}"
        )
    value, seed = _initial(full_name, dim, initializer, option, its_world)
    attrs = _attrs(full_name, dim, key_dtype, value_dtype, value, seed, option)
    attrs["num_partitions"] = num_partitions
    is_eager = tf.executing_eagerly()

    def make(name, attrs, matrix):
        if is_eager:
            made = functools.partial(make_eager_variable, name, attrs, matrix, trainable)
            if servers is None:
                return made()
            return strategies.on_next_server(servers, f"embedding variable '{full_name}'", made)
        variable = make_variable(name, attrs, matrix, trainable, collections)
        if strategies.is_on_server(variable):
            look_for_the_chief_every(1)
            explain_errors(strategies.what_a_server_lacks)
        return variable

    if its_world is not None:
        attrs.update(partition_index=its_world.rank, num_partitions=its_world.size)
        if is_eager:
            part = make(f"{full_name}/part_{its_world.rank}", attrs, value.matrix)
            part.of_world = its_world
        else:
            part = world_parts.make(
                its_world, full_name, attrs, value.matrix, trainable, collections
            )
        return _whole(full_name, [part], its_world)
    if num_partitions == 1:
        return make(full_name, attrs, value.matrix)
    matrix = value.matrix and functools.cache(value.matrix)  # all partitions share one
    parts = [
        make(f"{full_name}/part_{i}", dict(attrs, partition_index=i), matrix)
        for i in range(num_partitions)
    ]
    return _whole(full_name, parts)


def _check_type_of_reused(scope, name, value_dtype):
    """ValueError if a scope would give a variable with another type of values. TensorFlow's own message does not name value_dtype."""
    if not scope.reuse:
        return
    full_name = f"{scope.name}/{name}" if scope.name else name
    state = graph_state.state_of(tf.compat.v1.get_default_graph())
    found = state.partitioned.get(full_name) or state.variables.get(f"{full_name}:0")
    if found is not None and found.dtype != value_dtype:
        raise ValueError(
            f"embedding variable '{full_name}' exists: value_dtype: expected {value_dtype.name}, as specified, found "
            f"{found.dtype.name}"
        )


def _check_reused(
    variable, name, key_dtype, num_partitions, option, explicit_option, explicit_partitioner
):
    """ValueError if a reused variable differs from what the caller specified. TensorFlow has already compared dim and dtype."""
    if not is_embedding_variable(variable):
        raise ValueError(f"'{name}': expected an embedding variable, found {variable!r}")
    wrong = lambda what, expected, found: ValueError(
        f"embedding variable '{variable.variable_name}' exists: {what}: expected {expected}, as specified, found {found}"
    )
    if variable.key_dtype != key_dtype:
        raise wrong("key_dtype", key_dtype.name, variable.key_dtype.name)
    if explicit_partitioner and variable.num_partitions != num_partitions:
        raise wrong("number of partitions", num_partitions, variable.num_partitions)
    if explicit_option:
        found = variable.table_options
        storage = option.storage_option
        seed = found["initializer"].get("seed", 0)
        given = options.record_of(name, option, storage or storage_option.StorageOption(), seed)
        expected = option_record.check(given, value_dtype=variable.dtype.name)
        for each in given:
            if storage is None and each in storage_option.OPTIONS:
                continue
            if found[each] != expected[each]:
                raise wrong(each, expected[each], found[each])


def _make_eagerly(make, name, custom_getter):
    """A new variable, made outside of the function that is being traced."""
    if custom_getter is not None:
        raise ValueError(
            f"embedding variable '{name}': expected custom_getter=None in eager execution, found {custom_getter!r}: it works in "
            "v1 graphs only"
        )
    with tf.init_scope(), tf.name_scope(name) as its_scope:
        return make(name_from_scope_name(its_scope), collections=None)


def _make_or_reuse(make, scope, **arguments):
    """The variable that `tf.compat.v1.get_variable` gives in this scope: the existing one, or a new one of `make`."""

    def creator(unused_next_creator, **kwargs):
        made = make(kwargs["name"], collections=kwargs.get("collections"))
        return StoredParts(made) if made.is_partitioned else made

    partitioner = scope.partitioner
    scope.set_partitioner(None)  # else get_variable would partition the shape [0, dim]
    try:
        with tf.compat.v1.variable_creator_scope(creator):
            variable = tf.compat.v1.get_variable(
                initializer=tf.compat.v1.zeros_initializer(),
                regularizer=lambda unused: None,
                use_resource=True,
                **arguments,
            )
    finally:
        scope.set_partitioner(partitioner)
    return variable.whole if isinstance(variable, StoredParts) else variable


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: typing.Any = tf.int64,
    value_dtype: typing.Any = tf.float32,
    initializer: typing.Any = None,
    trainable: bool = True,
    collections: collections.abc.Sequence[str] | None = None,
    partitioner: collections.abc.Callable | None = None,
    ev_option: options.EmbeddingVariableOption | None = None,
    custom_getter: collections.abc.Callable | None = None,
    steps_to_live: int | None = None,
) -> embedding_variable.EmbeddingVariable | PartitionedEmbeddingVariable:
    """Creates an embedding variable. In a reusing scope of a v1 graph, returns the existing one of that name.

    An embedding variable is a hash table from integer keys to embeddings. It gets a row for each key that it is trained on. In v1
    graphs, scopes, `reuse`, custom getters and templates work as in `tf.compat.v1.get_variable`. Source: DeepRec's
    `get_embedding_variable`.

    In eager execution, and in the first trace of a tf.function, each call creates a variable, which owns its table. The name is for
    messages and checkpoints; the current tf.name_scope is put in front of it.

    Args:
      name: name within the variable scope.
      embedding_dim: elements of an embedding, 1 to 2**20.
      key_dtype: tf.int64, tf.int32, tf.uint64 or tf.uint32. Every value of the type is a key, negative ones too. Variables with
        unsigned keys take ids of unsigned types alone, and give keys in their type. A checkpoint restores into keys of the same sign
        and, of unsigned types, the same type.
      value_dtype: tf.float32, tf.bfloat16 or tf.float16: the type of the values in every tier, rounded to the nearest, ties to even.
        Slots are float32, and updates compute in float32. Lookups give this type unless they are asked for another. Values of 16
        bits need a storage type without HBM.
      initializer: a TensorFlow initializer. None: the scope's; if it has none, truncated normal with mean 0 and standard deviation
        1. A list has an entry for each of up to 65,535 tables that share the variable's rows: an initializer or a number, or a list of
        (first column, initializer), the first from column 0. Lookups then say with `tables` which entry each id has. A column of a key
        begins as with that column's initializer alone. Rows do not store their entry. An initializer in InitializerOption takes precedence. The initial value of a key depends only on the key, the seed and
        the initializer. If the initializer has no seed, the seed is derived from the graph's seed (eagerly, that of
        `tf.random.set_seed`) and the variable's full name.
      trainable: whether the variable joins TRAINABLE_VARIABLES. `serving.read_only()` makes variables that cannot be trained.
      collections: names of graph collections; None: GLOBAL_VARIABLES. Eagerly, there are none, and it has no effect.
      partitioner: a partitioner as for `tf.compat.v1.get_variable`, called with shape [1024, embedding_dim]. None: the scope's. In the
        scope of a ParameterServerStrategy of TensorFlow 2, None: its variable_partitioner; parts are put on the servers in turns.
        With n > 1 partitions, the returned object routes each key to one of n tables.
      ev_option: an EmbeddingVariableOption, or None for the defaults.
      custom_getter: as for `tf.compat.v1.get_variable`. In v1 graphs only.
      steps_to_live: DeepRec's older form of `GlobalStepEvict`, in steps. Not together with `ev_option.evict_option`.

    A scope's regularizer and caching device do not apply to embedding variables.

    Returns:
      An EmbeddingVariable, or, with n > 1 partitions, a PartitionedEmbeddingVariable. Its static shape is [0, embedding_dim].

    Raises:
      RuntimeError: called in a tf.function of a v1 graph.
      TypeError, ValueError: a bad argument, or the existing variable has another dim, dtype, partitioning or other options.
      NotImplementedError: this build has no tier for the storage type; a strategy of tf.distribute has several processes; or the
        variable_partitioner divides by size.
    """
    is_eager = eager.is_outside_of_graphs()
    if not is_eager:
        eager.refuse_function("get_embedding_variable")
    dim, key_dtype = _check_arguments(name, embedding_dim, key_dtype)
    trainable = boolean(f"embedding variable '{name}': trainable", trainable)
    if not is_read_only():
        strategies.check_creation(f"embedding variable '{name}'")
    option = option_in_force(name, ev_option, steps_to_live)
    value_dtype = _value_type(name, value_dtype, option)
    scope = tf.compat.v1.get_variable_scope()
    if option.init_option.initializer is not None:
        initializer = option.init_option.initializer
    elif initializer is None:
        initializer = scope.initializer
    servers = strategies.with_servers() if is_eager else None
    if partitioner is None and servers is not None:
        partitioner = strategies.partitioner_of(servers, f"embedding variable '{name}'")
    num_partitions = _number_of_partitions(name, partitioner or scope.partitioner, dim)
    make = functools.partial(
        _make,
        dim=dim,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        initializer=initializer,
        option=option,
        num_partitions=num_partitions,
        trainable=trainable,
        servers=servers,
    )
    if is_eager:
        return _make_eagerly(make, name, custom_getter)
    _check_type_of_reused(scope, name, value_dtype)
    variable = _make_or_reuse(
        make,
        scope,
        name=name,
        shape=[0, dim],
        dtype=value_dtype,
        trainable=trainable and not is_read_only(),
        collections=collections,
        custom_getter=custom_getter,
    )
    _check_reused(
        variable,
        name,
        key_dtype,
        num_partitions,
        option,
        ev_option is not None,
        partitioner is not None,
    )
    return variable
