"""What grouped lookups refuse, and the arguments they take."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from group_util import initialized
from group_util import sparse
from group_util import static
from group_util import table

import tf_multitier
from tf_multitier import feature_column as fc
from tf_multitier import nn

v1 = tf.compat.v1


def test_errors_name_the_member(world):
    ev, other = table("ev", 4), table("other", 4)
    ids = sparse([[1, 2]])

    def refused(error, message, *args, **kwargs):
        with pytest.raises(error, match=message):
            world.run(lambda: nn.group_embedding_lookup_sparse(*args, **kwargs))

    refused(
        ValueError,
        r"sp_ids: expected 2 entries, one for each of params, found 1: member 1",
        [ev, other],
        [ids],
        "sum",
    )
    refused(
        ValueError,
        r"combiners: expected 1 entries, one for each of params, found 2",
        [ev],
        [ids],
        ["sum", "sum"],
    )
    refused(ValueError, r"sp_weights: expected 1 entries", [ev], [ids], ["sum"], [None, None])
    refused(ValueError, r"params: expected at least one entry, found none", [], [], [])
    refused(TypeError, r"params: expected a list", ev, [ids], ["sum"])
    refused(
        ValueError,
        r"member 1 \('other'\): combiner: expected 'sum', 'mean' or 'sqrtn', found 'max'",
        [ev, other],
        [ids, ids],
        ["sum", "max"],
    )
    refused(
        ValueError,
        r"member 1 \('other'\): weights: expected 2 values, one for each of sp_ids, found 1",
        [ev, other],
        [ids, ids],
        "sum",
        [None, sparse([[1.0]], np.float32)],
    )
    refused(
        TypeError,
        r"member 1 \('other'\): sp_ids: expected a SparseTensor or a RaggedTensor, found",
        [ev, other],
        [ids, tf.constant([1])],
        "sum",
    )
    refused(
        TypeError,
        r"member 0 \('ev'\): weights: expected a SparseTensor as the ids are",
        [ev],
        [ids],
        "sum",
        [tf.RaggedTensor.from_row_lengths([1.0, 1.0], [2])],
    )
    narrow = tf_multitier.get_embedding_variable("narrow", 4, key_dtype=tf.int32)
    refused(
        TypeError,
        r"member 1 \('narrow'\): .*expected int32, the key_dtype, found int64",
        [ev, narrow],
        [ids, ids],
        "sum",
    )
    refused(
        TypeError,
        r"member 1 \('other'\): .*string",
        [ev, other],
        [ids, sparse([["a"]], str)],
        "sum",
    )
    refused(
        ValueError,
        r"member 0 \('ev'\): max_norm: expected None or at least 0",
        [ev],
        [ids],
        "sum",
        max_norms=[-1.0],
    )
    refused(ValueError, r"member 0 .*\[rows, dim\]", [v1.get_variable("flat", [3])], [ids], "sum")
    if world.is_graph:  # multihash variables are in graphs alone
        refused(
            TypeError,
            r"member 1 \('hashed'\): expected an embedding variable, .* found <tf_multitier.MultiHashVariable",
            [ev, tf_multitier.get_multihash_variable("hashed", [[2, 4], [2, 4]], operation="add")],
            [ids, ids],
            "sum",
        )
    refused(
        TypeError,
        r"member 1 \('NoneType'\): expected an embedding variable",
        [ev, None],
        [ids, ids],
        "sum",
    )
    refused(
        TypeError,
        r"member 0 \('ev'\): weights: expected floats, found string",
        [ev],
        [ids],
        "sum",
        [sparse([["a", "b"]], str)],
    )
    refused(
        ValueError,
        r"member 1 \('other'\): weights: expected indices .*, as the ids have, found \[\[0, 0\], \[0, 2\]\]",
        [ev, other],
        [ids, ids],
        "sum",
        [None, tf.SparseTensor([[0, 0], [0, 2]], [1.0, 2.0], [1, 3])],
    )
    refused(
        ValueError,
        r"member 0 \('ev'\): weights: expected row splits \[0, 2, 3\], as the ids have, found \[0, 1, 3\]",
        [ev],
        [tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 2, 3])],
        "sum",
        [tf.RaggedTensor.from_row_splits([1.0, 1.0, 1.0], [0, 1, 3])],
    )
    refused(ValueError, "partition_strategy", [ev], [ids], "sum", partition_strategy="hash")
    for limit in (0, None, 1.5):
        refused(
            ValueError,
            "params_num_per_group: expected an integer, at least 1",
            [ev],
            [ids],
            "sum",
            params_num_per_group=limit,
        )
    with pytest.raises(ValueError, match=r"ids: expected 2 entries, one for each of params"):
        world.run(lambda: nn.group_embedding_lookup([ev, other], [[1]]))


def test_errors_of_a_run_name_the_member(world):
    ev, other, var = table("ev", 4), table("other", 4), static("var", 4)
    ids, weights = [[1, 2]], [[1.0, 2.0]]

    def look_up(values, length):
        given = sparse(ids)
        late = tf.SparseTensor(given.indices, values, given.dense_shape)
        late_weights = tf.SparseTensor(given.indices, length, given.dense_shape)
        return nn.group_embedding_lookup_sparse(
            [ev, var, other],
            [given, late, late],
            "sum",
            [sparse(weights, np.float32), None, late_weights],
        )

    def refused(message, function, *arrays):
        # Where the shapes are known before the run, they are refused then.
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            world.run(function, *arrays)

    def numbers(*of):
        return np.array(of, np.int64)

    def ones(count):
        return np.ones(count, np.float32)

    world.run(look_up, numbers(1, 2), ones(2))
    out_of_range = r"member 1 \('var'\): expected ids in \[0, 20\), found 20"
    if tf.config.list_physical_devices("GPU") and not world.is_graph:
        out_of_range = r"member 1 .*var.*: expected ids in \[0, 20\)"  # TensorFlow reads `var`
    refused(out_of_range, look_up, numbers(1, 20), ones(2))
    if not world.is_eager:  # there, tf.SparseTensor itself compares the shapes
        refused(
            r"member 2 \('other'\): .*expected 2 (weights|values)", look_up, numbers(1, 2), ones(1)
        )
        refused(
            # Both are wrong. With HBM they are in two ops, and either fails first: the second text is that of a GPU.
            r"member (1 \('var'\)|2 \('other'\)): expected (one row index for each of 3|indices \[3, 2\])",
            look_up,
            numbers(1, 2, 3),
            ones(3),
        )
    for is_sequence in (False, True):

        def shaped(shape, is_sequence=is_sequence):
            given = sparse(ids)
            return nn.group_embedding_lookup_sparse(
                [other, ev],
                [given, tf.SparseTensor(given.indices, given.values, shape)],
                "sum",
                is_sequence=is_sequence,
            )

        world.run(shaped, numbers(1, 2))
        for found, message in (
            ((-1, 2), r"expected a dense shape .* found \[-1, "),
            ((2,), "expected a dense shape of two numbers"),
            ((0, 2), r"expected rows in \[0, 0\)"),
        ):
            if len(found) == 2 or not world.is_eager:
                refused(r"member 1 \('ev'\): " + message, shaped, numbers(*found))
    if world.is_graph:
        out = look_up(tf.constant([1, 2], tf.int64), tf.ones(2))
        with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
            with v1.Session() as fresh:
                fresh.run(out)


@pytest.mark.parametrize("control_flow_v2", [False, True])
def test_loops_look_up_and_refuse_to_train(control_flow_v2):
    was = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if control_flow_v2 else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            ev, other = table("ev", 2), static("static", 2)

            def body(i, total):
                outs = nn.group_embedding_lookup_sparse(
                    [ev, other], [sparse([[1]]), sparse([[2]])], "sum"
                )
                outs += nn.group_embedding_lookup([ev], [[3]])
                return i + 1, total + tf.add_n([tf.reduce_sum(out) for out in outs])

            _, total = tf.while_loop(lambda i, _: i < 3, body, [0, 0.0])
            once = [tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 3])), tf.reduce_sum(other[2])]
            initialized(session)
            looped, expected = session.run([total, once])
            assert looped == pytest.approx(3 * sum(expected), rel=1e-5)
            for variable in (ev.handle, other):
                with pytest.raises(
                    NotImplementedError,
                    match=r"lookup '.*group_embedding_lookup.*' of an embedding variable inside a "
                    "loop is not supported: look the keys of all steps up before",
                ):
                    tf.gradients(total, [variable])
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def test_arguments_are_in_deeprecs_order():
    names = lambda function: list(inspect.signature(function).parameters)
    assert names(nn.group_embedding_lookup)[:4] == ["params", "ids", "partition_strategy", "name"]
    assert names(nn.group_embedding_lookup_sparse)[:8] == [
        "params",
        "sp_ids",
        "combiners",
        "sp_weights",
        "partition_strategy",
        "is_sequence",
        "params_num_per_group",
        "name",
    ]
    assert names(fc.group_embedding_column_scope)[:2] == ["name", "params_num_per_group"]
