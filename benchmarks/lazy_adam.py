r"""Adam of all rows of a dense table, of the rows of a step, and of those that catch up: training loss and held-out quality.

    python benchmarks/lazy_adam.py --data movielens_1m

A matrix factorization of pairs of users and items with sampled items, as keras.layers.Embedding with keras.optimizers.Adam, and as
tf_multitier.keras.Embedding with the same optimizer and first rows, without and with catch_up. Held out is one pair of each user: AUC
against a random item.
"""

import argparse
import os
import sys

import keras
import numpy as np

import tf_multitier.keras as kt

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples"))
import metrics
import movielens


def model_of(layers):
    inputs = [keras.Input((), dtype="int64", name=name) for name in ("user", "item")]
    users, items = (layer(ids) for layer, ids in zip(layers, inputs))
    bias = layers[2](inputs[1])
    score = keras.layers.Dot(1)([users, items]) + bias
    return keras.Model(inputs, score)


def layers_of(kind, sizes, dim):
    """Tables of users, items and biases of items."""
    make = (
        keras.layers.Embedding
        if kind == "dense"
        else lambda rows, *args, **kw: kt.Embedding(*args, **kw)
    )
    shapes = [(sizes[0], dim), (sizes[1], dim), (sizes[1], 1)]
    rng = np.random.default_rng(0)
    first = [rng.normal(0, 0.05, shape).astype(np.float32) for shape in shapes]
    return [
        make(rows, width, embeddings_initializer=keras.initializers.Constant(matrix))
        for (rows, width), matrix in zip(shapes, first)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a folder with train.csv.gz")
    parser.add_argument("--pairs", type=int, help="train on the first of them alone")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=0.002)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    users, items = movielens.read_pairs(options.data)
    order = rng.permutation(users.size)[: options.pairs]
    users, items = users[order], items[order]
    out = movielens.hold_out(users, rng)
    sizes = int(users.max()) + 1, int(items.max()) + 1
    draw = lambda n: rng.integers(0, sizes[1], n)
    held = [np.tile(users[out], 2), np.concatenate([items[out], draw(out.sum())])]
    held_labels = np.repeat([1, 0], out.sum())
    users, items = users[~out], items[~out]
    x = [np.repeat(users, 2), np.stack([items, draw(items.size)], 1).ravel()]
    y = np.tile([1.0, 0.0], items.size).astype(np.float32)[:, None]
    print(f"{items.size} pairs to train, {out.sum()} held out, {sizes[0]} users, {sizes[1]} items")
    for kind in ("dense", "lazy", "catch_up"):
        keras.utils.set_random_seed(3)
        model = model_of(layers_of(kind, sizes, options.dim))
        optimizer = keras.optimizers.Adam(options.learning_rate)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        if kind != "dense":
            optimizer = kt.with_rows(optimizer, catch_up=kind == "catch_up")
        model.compile(optimizer, loss)
        for epoch in range(options.epochs):
            history = model.fit(x, y, batch_size=options.batch_size, verbose=0).history
            found = model.predict(held, batch_size=8192, verbose=0)[:, 0]
            auc = metrics.auc(held_labels, found)
            print(
                f"{kind} epoch {epoch + 1}: loss {history['loss'][0]:.4f}, held-out AUC {auc:.4f}"
            )


if __name__ == "__main__":
    main()
