"""Steps of a table of tf_multitier.dynamicemb that is full and evicts by score, and of one that grows.

    .venv/bin/python benchmarks/full_tables.py

evict    a full table (STEP), in turns with one that has room (NO_EVICTION, reserved): Zipf ids, and ids that are all new
grow     new ids until --grown_rows: the slowest step, as a multiple of the median

By the clock, and by processor time of the process, which other programs change less.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from tf_multitier import dynamicemb as de

BATCH = 16_384
_NEW = 1 << 50  # greater than all other ids


def make(dim, rows, strategy, **options):
    config = de.EmbeddingConfig(
        name="t", embedding_dim=dim, num_embeddings=rows, feature_names=["t"]
    )
    made = de.EmbeddingCollection(tables=[config], device="meta")
    options = de.DynamicEmbTableOptions(score_strategy=strategy, **options)
    return made.create({"t": options}, {"optimizer": de.EmbOptimType.SGD, "learning_rate": 0.1})


def step(model, ids):
    """(seconds, seconds of the processors) of a training step."""
    ids = tf.constant(ids, tf.int64)
    begin = np.array([time.perf_counter(), time.process_time()])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model({"t": ids}, training=True)["t"])
    model.apply_gradients(tape.gradient(loss, model.parameters()))
    return np.array([time.perf_counter(), time.process_time()]) - begin


def evict(rows, rounds):
    strategies = de.DynamicEmbScoreStrategy
    rng = np.random.default_rng(1)
    zipf = lambda i: (found := rng.zipf(1.05, 4 * BATCH))[found < 4 * rows][:BATCH]
    for name, ids_of in (("Zipf", zipf), ("new", lambda i: _NEW + i * BATCH + np.arange(BATCH))):
        full = make(64, rows, strategies.STEP)
        other = make(64, 4 * rows, strategies.NO_EVICTION, init_capacity=4 * rows)
        for first in range(0, rows, BATCH):
            for model in (full, other):
                step(model, _NEW - 1 - np.arange(first, first + BATCH))
        ratios = []
        for i in range(rounds):
            ids = ids_of(i)
            order = (full, other) if i % 2 else (other, full)
            times = {id(model): step(model, ids) for model in order}
            ratios.append(times[id(full)] / times[id(other)])
        clock, processor = np.median(ratios, 0)
        print(f"evict, {name} ids: {clock:.2f} by the clock, {processor:.2f} by processor time")


def grow(rows):
    model = make(8, 2 * rows, de.DynamicEmbScoreStrategy.STEP)
    times = [step(model, first + np.arange(BATCH)) for first in range(0, rows, BATCH)][3:]
    for name, found in zip(("the clock", "processor time"), zip(*times)):
        median = statistics.median(found)
        slowest = [round(float(x / median), 1) for x in sorted(found)[-3:]]
        print(f"grow: slowest steps / median by {name}: {slowest}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 20, help="of the full table")
    parser.add_argument("--grown_rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    flags = parser.parse_args()
    evict(flags.rows, flags.rounds)
    grow(flags.grown_rows)


if __name__ == "__main__":
    main()
