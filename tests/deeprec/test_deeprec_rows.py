"""Rows of DeepRec's checkpoints: read, converted, and restored by a program of ours, which trains on."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from checkpoint_util import restored

v1 = tf.compat.v1


def write_deeprec(prefix, tensors):
    with tf.Graph().as_default(), v1.Session() as session:
        names = sorted(tensors)
        session.run(
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=[tf.constant(tensors[name]) for name in names],
            )
        )


def deeprec_variable(name, keys, slot="Adagrad", filtered=(), shuffle=True):
    """The tensors that DeepRec writes of a variable of dim 4: see its page on the export format."""
    keys = np.asarray(keys, np.int64)
    filtered = np.asarray(filtered, np.int64)
    order = np.random.default_rng(0).permutation(len(keys)) if shuffle else np.arange(len(keys))
    values = keys[:, None] + np.arange(4) / 8
    tensors = {
        f"{name}-keys": keys,
        f"{name}-values": values.astype(np.float32),
        f"{name}-freqs": np.abs(keys) + 1,
        f"{name}-versions": keys * 10,
        f"{name}-keys_filtered": filtered,
        f"{name}-freqs_filtered": filtered * 0 + 2,
        f"{name}-versions_filtered": filtered,
        f"{name}-partition_offset": np.zeros(1001, np.int32),
        f"{name}-partition_filter_offset": np.zeros(1001, np.int32),
    }
    if slot:
        tensors |= {
            f"{name}/{slot}-keys": keys[order],
            f"{name}/{slot}-values": (values[order] + 100).astype(np.float32),
            f"{name}/{slot}-freqs": np.zeros(1, np.int64),
            f"{name}/{slot}-versions": np.zeros(1, np.int64),
            f"{name}/{slot}-partition_offset": np.zeros(1001, np.int32),
        }
    return tensors


def test_a_checkpoint_of_deeprec_moves_over(tmp_path):
    """Partitions, a slot in another order, counted keys and dense variables; restored by a program, which trains on."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    keys = np.arange(-20, 30)
    tensors = {"dense": np.float32([3, 4]), "global_step": np.int64(7)}
    for part in range(2):
        mine = keys[keys % 2 == part]
        tensors |= deeprec_variable(f"scope/user/part_{part}", mine, filtered=[1000 + part])
    write_deeprec(old, tensors)
    saved = checkpoint.load_deeprec(old)
    table = saved.tables["scope/user"]
    assert list(saved.tables) == ["scope/user"] and table.num_rows == 50
    assert sorted(saved.tensors) == ["dense", "global_step"]
    rows = table.read()
    assert sorted(rows.keys) == keys.tolist() and sorted(rows.counted_keys) == [1000, 1001]
    np.testing.assert_array_equal(rows.column("scope/user/Adagrad"), rows.column("value") + 100)
    np.testing.assert_array_equal(rows.frequencies, np.abs(rows.keys) + 1)
    np.testing.assert_array_equal(rows.versions, rows.keys * 10)

    arguments = ["--from=deeprec", old, "--to=checkpoint", new, "--partitions=3"]
    assert convert.main(arguments) == 0
    values, frequencies, after = restored(new, keys)
    expected = keys[:, None] + np.arange(4) / 8
    np.testing.assert_array_equal(values, expected.astype(np.float32))
    np.testing.assert_array_equal(frequencies, np.abs(keys) + 1)
    gradient = 2 * expected
    step = 0.1 * gradient / np.sqrt(expected + 100 + gradient**2)
    np.testing.assert_allclose(after, expected - step, rtol=1e-5)
    assert tf.train.load_variable(new, "global_step") == 7


OPTIMIZERS = {
    "Adadelta": lambda: v1.train.AdadeltaOptimizer(0.1),
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "AdagradDecay": lambda: tf_multitier.train.AdagradDecayOptimizer(0.1, tf.constant(1)),
    "AdagradDecayV2": lambda: tf_multitier.train.AdagradDecayOptimizerV2(0.1, tf.constant(1)),
    "Adam": lambda: v1.train.AdamOptimizer(0.1),
    "AdamAsync": lambda: tf_multitier.train.AdamAsyncOptimizer(0.1),
    "AdamW": lambda: tf_multitier.train.AdamWOptimizer(0.01),
    "Ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    "Momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "RMSProp": lambda: v1.train.RMSPropOptimizer(0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_deeprec_have_the_initial_values_of_our_optimizers(tmp_path, name):
    """Trains a key of a moved checkpoint that it lacks: as in a new variable, whose slots the optimizer has made."""
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    with tf.Graph().as_default(), v1.Session() as session:
        variable = tf_multitier.get_embedding_variable("user", 4)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.constant([5], tf.int64)))
        train = OPTIMIZERS[name]().minimize(loss, v1.train.get_or_create_global_step())
        session.run(v1.global_variables_initializer())
        session.run(train)
        v1.train.Saver([variable]).save(session, old)
    columns = checkpoint.load(old).tables["user"].columns
    tensors = {}
    for column, dim, _ in columns:
        stem = "user" if column == "value" else column
        tensors[f"{stem}-keys"] = np.array([5])
        tensors[f"{stem}-values"] = np.zeros((1, dim), np.float32)
    write_deeprec(new, tensors)
    assert len(columns) > 1
    assert checkpoint.load_deeprec(new).tables["user"].columns == [
        (column, dim, pytest.approx(value)) for column, dim, value in columns
    ]


def test_slots_of_deeprec_are_found_in_both_spellings_and_may_lack_keys(tmp_path):
    prefix = str(tmp_path / "old")
    tensors = deeprec_variable("user/part_0", [1, 2, 3], slot=None)
    slot = deeprec_variable("x", [3, 9], slot=None)
    tensors |= {key.replace("x-", "user/Adagrad/part_0-"): value for key, value in slot.items()}
    write_deeprec(prefix, tensors)
    rows = checkpoint.load_deeprec(prefix).tables["user"].read()
    found = dict(zip(rows.keys.tolist(), rows.column("user/Adagrad").tolist()))
    assert found == {
        1: [pytest.approx(0.1)] * 4,
        2: [pytest.approx(0.1)] * 4,
        3: [3, 3.125, 3.25, 3.375],
    }


def test_an_unknown_slot_of_deeprec_asks_for_its_initial_value(tmp_path):
    prefix = str(tmp_path / "old")
    write_deeprec(prefix, deeprec_variable("user", [1, 2], slot="MyAdagrad"))
    with pytest.raises(ValueError, match=r"initial_values\['MyAdagrad'\]"):
        checkpoint.load_deeprec(prefix)
    table = checkpoint.load_deeprec(prefix, {"MyAdagrad": 0.5}).tables["user"]
    assert table.columns[1] == ("user/MyAdagrad", 4, 0.5)
    assert sorted(checkpoint.load_deeprec(prefix, {"MyAdagrad": None}).tables) == [
        "user",
        "user/MyAdagrad",
    ]


def test_damaged_checkpoints_of_deeprec_are_refused(tmp_path):
    prefix = str(tmp_path / "old")
    tensors = deeprec_variable("user", [1, 2, 3])
    tensors["user-freqs"] = tensors["user-freqs"][:2]
    write_deeprec(prefix, tensors)
    with pytest.raises(engine.DataLossError, match="expected 3 elements in 'user-freqs', found 2"):
        checkpoint.load_deeprec(prefix).tables["user"].read()
    (tmp_path / "old-user-ssd_record.index").write_bytes(b"")
    with pytest.raises(NotImplementedError, match="SSDHASH"):
        checkpoint.load_deeprec(prefix)
