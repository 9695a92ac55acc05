"""Collections of tf_multitier.dynamicemb for tests."""

import tensorflow as tf

from tf_multitier import dynamicemb as de

STEP = de.DynamicEmbScoreStrategy.STEP


def config(name, dim=4, rows=128, features=None, **kwargs):
    return de.EmbeddingConfig(name, dim, rows, features or [name], **kwargs)


def options(strategy=STEP, **kwargs):
    return de.DynamicEmbTableOptions(score_strategy=strategy, **kwargs)


def collection(tables, of_table=None, **fused_params):
    """A collection with variables. of_table: {table: options}; STEP for the others."""
    made = de.EmbeddingCollection(tables, device="meta")
    its = {table.name: options() for table in tables} | (of_table or {})
    return made.create(its, fused_params)


def flat(rows):
    return rows.flat_values if isinstance(rows, tf.RaggedTensor) else rows


def train(made, *calls, weights=None):
    """One step whose loss is the sum of the rows of several calls, times `weights` {feature: gradients of its rows}."""
    with tf.GradientTape() as tape:
        loss = 0.0
        for ids in calls:
            for feature, rows in made(ids, training=True).items():
                loss += tf.reduce_sum(flat(rows) * (1.0 if weights is None else weights[feature]))
    made.apply_gradients(tape.gradient(loss, made.parameters()))


def keys(*its):
    return tf.constant(its, tf.int64)


def variable(made, table):
    return made.tables_by_name[table].variable
