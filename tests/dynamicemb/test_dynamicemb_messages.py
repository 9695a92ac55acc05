"""A bad argument of tf_multitier.dynamicemb is one sentence that names it, wherever it is given, and nothing has changed."""

import dynamicemb_util as util
import keras
import numpy as np
import pytest
import tensorflow as tf
from worlds import needs_eager

from tf_multitier import dynamicemb as de

pytestmark = needs_eager

S = de.DynamicEmbScoreStrategy
KJT = de.KeyedJaggedTensor


@pytest.fixture(scope="module")
def model():
    of_table = {"lfu": util.options(S.LFU), "own": util.options(S.CUSTOMIZED)}
    made = util.collection([util.config("lfu"), util.config("own")], of_table)
    de.set_score(made, 3)
    util.train(made, dict.fromkeys(of_table, util.keys(1)))
    return made


def _create(options=None, fused=None, **of_table):
    options = {"a": util.options(**of_table)} if of_table else options
    return de.EmbeddingCollection([util.config("a")]).create(options, fused or {})


def _planner(**kwargs):
    return de.DynamicEmbeddingShardingPlanner(**{"eb_configs": [util.config("a")], **kwargs})


def _bags():
    config = de.EmbeddingBagConfig("a", 4, 9, ["a"])
    return de.EmbeddingBagCollection([config]).create({"a": util.options()}, {})


TIERS = {"storage_type": "DRAM_PMEM_SSDHASH", "storage_path": "/none"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: de.set_score(m, {"model": 5}), "set_score: 'model': .*a dict.*found 5"),
        (lambda m: de.incremental_dump(m, -1), "score_threshold: table 'lfu'.*at least 0"),
        (
            lambda m: de.incremental_dump(m, {"model": {"lfu": -1}}),
            r"score_threshold\['model'\]\['lfu'\]: expected at least 0",
        ),
        (lambda m: de.incremental_dump(m, 1, True), "pg: expected a process group or None"),
        (lambda m: _create(None), "options: expected a dict.*found None"),
        (lambda m: de.DynamicEmbDump("/none", m, {}), "table_names: expected one table or more"),
        (lambda m: de.DynamicEmbLoad("/none", m, {"model": []}), "table_names: expected one table"),
        (lambda m: de.DynamicEmbDump(None, m), "path: expected a folder's path, found None"),
        (lambda m: de.DynamicEmbLoad(3, m), "path: expected a folder's path, found 3"),
        (lambda m: m.apply_gradients(None), "gradients: expected a list, found None"),
        (lambda m: m.apply_gradients(tf.ones(2)), "gradients: expected a list"),
        (
            lambda m: _create(max_capacity=2, **TIERS),
            "max_capacity: expected at least 3, .*found 2",
        ),
        (lambda m: util.config("a", features=5), "feature_names: expected a list of strings"),
        (lambda m: de.EmbeddingConfig("a", 4, 9, None), "feature_names: .*found None"),
        (lambda m: KJT(None, [1], lengths=[1]), "keys: expected a list of strings, found None"),
        (lambda m: KJT(["a"], [], offsets=[]), "offsets: expected 0 as the first, found none"),
        (lambda m: KJT(["a"], [[1], [2, 3]], lengths=[1]), r"values: expected numbers \[n\]"),
        (lambda m: KJT(["a"], [2**64], lengths=[1]), r"values: expected numbers \[n\]"),
        (lambda m: KJT(["a"], [True], lengths=[1]), "values: expected integers, found bool"),
        (
            lambda m: KJT(["a"], [1], lengths=[1], weights=["x"]),
            "weights: expected numbers, found string",
        ),
        (lambda m: _planner(eb_configs=None), "eb_configs: expected a list of EmbeddingConfig"),
        (lambda m: _planner(constraints=[1]), "constraints: expected dict or None"),
        (lambda m: de.DynamicEmbParameterConstraints(3), "sharding_types: expected a list"),
        (lambda m: de.get_sharded_table_capacity(None, 1), "embedding_config: expected an Emb"),
        (lambda m: de.align_to_table_size("a"), "n: expected a finite number, found 'a'"),
        (lambda m: m({"lfu": None}), "feature 'lfu': .*: ids: expected int64, found None"),
        (
            lambda m: m({"lfu": [[1], [2, 3]]}),
            r"ids: expected int64, found \[\[1\], \[2, 3\]\]: .*",
        ),
        (lambda m: m({"lfu": keras.Input([2])}), "expected int64, found .*: call a layer of Keras"),
        (lambda m: _bags()({"a": None}), r"feature 'a': expected \[batch\] or .*, found None"),
        (lambda m: _bags()({"a": [1]}, tf.ones(2)), "weights: expected a dict or a Keyed"),
        (lambda m: m.apply_gradients([3, 4]), "expected tf.IndexedSlices or a tensor, found 3"),
        (lambda m: util.options(storage_type=""), "storage_type: expected .*; found ''"),
        (lambda m: util.options(dist_type=np.ones(2)), "dist_type: expected 'continuous', .*found"),
        (
            lambda m: de.EmbeddingConfig("a", 4, 9, keras.Input([2])),
            "feature_names: expected a list",
        ),
        (lambda m: de.DynamicEmbDump("", m), "path: expected a path, .*, found ''"),
        (lambda m: de.DynamicEmbDump("a\0", m), "DynamicEmbDump: path: .* without null characters"),
        (lambda m: de.DynamicEmbLoad("\udcff", m), r"path: .* text in UTF-8 .*, found '.udcff'"),
        (
            lambda m: de.DynamicEmbParameterConstraints(use_dynamicemb=np.ones(2)),
            "use_dynamicemb: expected True or False, found array",
        ),
    ],
)
def test_a_bad_argument_is_one_sentence(call, message, model):
    with pytest.raises((TypeError, ValueError), match=message):
        call(model)


def test_offsets_that_are_none_when_run_are_refused():
    begin = tf.function(
        lambda offsets: KJT(["a"], [], offsets=offsets).lengths(),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    assert begin(tf.zeros([1], tf.int64)).shape == (0,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the first of offsets to be 0"):
        begin(tf.zeros([0], tf.int64))


def test_ids_of_a_list_keep_64_bits_without_a_sign():
    ids = [2**64 - 1, 3]
    made = util.collection([util.config("a")], {"a": util.options(index_type=tf.uint64)})
    util.train(made, KJT(["a"], ids, lengths=[2]))
    assert util.variable(made, "a").get_version(tf.constant(ids, tf.uint64)).numpy().tolist() == [
        1,
        1,
    ]


def test_a_path_of_bytes_is_a_path(model, tmp_path):
    de.DynamicEmbDump(bytes(tmp_path / "dump"), model)
    de.DynamicEmbLoad(bytes(tmp_path / "dump"), model)
    assert (tmp_path / "dump" / "manifest.json").exists()
