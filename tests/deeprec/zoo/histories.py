"""What DIN and DIEN share: columns and tables of items, and the histories of users."""

import os

import tensorflow as tf
from tensorflow.python.feature_column import utils as fc_utils
from tensorflow.python.feature_column.feature_column import _LazyBuilder

import zoo

LENGTH = 10


def build_columns(args):
    voc = {key: os.path.join(args.data_location, key + "_voc.txt") for key in ("uid", "mid", "cat")}
    plain = tf.feature_column.categorical_column_with_vocabulary_file
    sequence = tf.feature_column.sequence_categorical_column_with_vocabulary_file
    if args.ev and not args.tf:
        uid = tf.feature_column.categorical_column_with_embedding(
            "UID", dtype=tf.string, ev_option=zoo.ev_option(args)
        )
    else:
        uid = plain("UID", voc["uid"], default_value=0)
    return {
        "uid": zoo.embedding(args, uid, args.embedding_dim),
        "item": plain("ITEM", voc["mid"], default_value=0),
        "category": plain("CATEGORY", voc["cat"], default_value=0),
        "his_item": sequence("HISTORY_ITEM", voc["mid"], default_value=0),
        "his_category": sequence("HISTORY_CATEGORY", voc["cat"], default_value=0),
    }


def embedding_table(args, name, column):
    buckets, dim = column._num_buckets, args.embedding_dim
    if args.ev and not args.tf:
        return tf.get_embedding_variable(name, dim, ev_option=zoo.ev_option(args))
    if args.multihash and not args.tf:
        part = int(buckets**0.5)
        return tf.get_multihash_variable(name, [[part, dim], [int(buckets / part), dim]])
    return tf.get_variable(name, [buckets, dim])


class History:
    """Embeddings of items and of the histories of users, from two tables that plain and sequence columns share."""

    def __init__(self, features, columns, args):
        self._args, self._columns = args, columns
        self._builder = _LazyBuilder(features)
        self._tables = {
            "item": embedding_table(args, "item_embedding_var", columns["item"]),
            "category": embedding_table(args, "category_embedding_var", columns["category"]),
        }

    def _look_up(self, column, table):
        ids = self._columns[column]._get_sparse_tensors(self._builder)
        arguments = dict(
            embedding_weights=self._tables[table],
            sparse_ids=ids.id_tensor,
            sparse_weights=ids.weight_tensor,
        )
        if self._args.emb_fusion and not self._args.tf:
            from tensorflow.python.ops.embedding_ops import fused_safe_embedding_lookup_sparse

            rows = fused_safe_embedding_lookup_sparse(**arguments)
        else:
            rows = tf.nn.safe_embedding_lookup_sparse(**arguments)
        return rows, ids.id_tensor

    def item(self):
        return tf.concat([self._look_up(name, name)[0] for name in ("item", "category")], 1)

    def steps(self, prefix):
        """(embeddings [batch, steps, 2 x embedding_dim], lengths [batch])"""
        (items, ids), (categories, others) = (
            self._look_up(prefix + "_" + name, name) for name in ("item", "category")
        )
        lengths = [fc_utils.sequence_length_from_sparse_tensor(x) for x in (ids, others)]
        with tf.control_dependencies([tf.debugging.assert_equal(*lengths)]):
            return tf.concat([items, categories], 2), tf.identity(lengths[0])


def split_history(features, names, batch_size):
    for key in names:
        parts = tf.strings.split(features[key], "\x02")
        features[key] = tf.sparse.slice(parts, [0, 0], [batch_size, LENGTH])


def clipped_step(model, args):
    """train_op: gradients clipped one by one, as DIN and DIEN do."""
    optimizer = zoo.optimizer_of(args, model.global_step)
    gradients = [
        (tf.clip_by_norm(grad, 5), var)
        for grad, var in optimizer.compute_gradients(model.loss)
        if grad is not None
    ]
    return optimizer.apply_gradients(gradients, global_step=model.global_step)
