"""Statistics over time: rates between readings, and what TensorBoard's event files get."""

import glob
import json

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import engine
from tf_multitier._src.variable import statistics
from variable_util import make

v1 = tf.compat.v1


def events(folder):
    """{tag: [(step, value)]} of the event files in a folder."""
    found = {}
    for path in sorted(glob.glob(str(folder) + "/events.*")):
        for event in v1.train.summary_iterator(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def reading(**changes):
    tier = {"name": "dram", "rows": 5, "hits": 30, "misses": 10, "promotions": 4}
    return {"rows": 5, "lookups": 40, "absent": 10, "tiers": [tier | changes]}


def test_rates_are_changes_per_second():
    before = reading(hits=10, misses=5, promotions=0) | {"lookups": 20, "absent": 5}
    found = statistics.scalars(reading(), before, 2.0)
    assert found["rows"] == found["dram_rows"] == 5
    assert found["lookups_per_s"] == 10 and found["absent_share"] == 0.25
    assert found["dram_hit_rate"] == 20 / 25 and found["dram_promotions_per_s"] == 2


def test_the_first_reading_has_levels_alone():
    assert statistics.scalars(reading()) == {"rows": 5, "dram_rows": 5}


def test_counts_of_a_new_table_begin_again():
    """A restore makes a new table: its counts are below those of the last reading."""
    found = statistics.scalars(reading(), reading(hits=1000) | {"lookups": 2000}, 1.0)
    assert found["lookups_per_s"] == 40 and found["dram_hit_rate"] == 0.75


def test_latency_is_the_percentile_of_the_interval():
    before = reading(read_latency_us_log2=[0, 100])
    now = reading(read_latency_us_log2=[0, 100, 98, 0, 2])
    assert statistics.scalars(now, before, 1.0)["dram_read_p99_us"] == 16


def test_parts_and_variables_are_added_up():
    total = statistics.merged([reading(latency_us_log2=[1]), reading(latency_us_log2=[1, 2])])
    assert total["rows"] == 10 and total["tiers"][0]["hits"] == 60
    assert total["tiers"][0]["latency_us_log2"] == [2, 2]
    assert statistics.merged([]) == {"tiers": []}


def test_an_engine_table_is_written(tmp_path):
    writer = tf_multitier.StatisticsWriter(tmp_path / "logs")
    with engine.Table(
        4, storage_type="DRAM_SSDHASH", storage_path=str(tmp_path / "ssd"), storage_size=[4096]
    ) as table:
        keys = np.arange(2000)
        for step in range(3):
            table.apply("sgd", keys, np.ones((len(keys), 4)), hyper={"learning_rate": 0.1})
            table.drain()
            written = writer.write(step, {"user": table})
    writer.close()
    found = events(tmp_path / "logs")
    assert found["rows/user"] == [(step, 2000) for step in range(3)] == found["rows/all"]
    assert [step for step, _ in found["updates_per_s/user"]] == [1, 2]
    assert found["dram_row_bytes/user"][-1][1] <= 4096
    assert 0 <= found["dram_hit_rate/user"][-1][1] < 1
    assert found["ssdhash_read_p99_us/user"][-1][1] >= 1
    assert set(written) <= set(found)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_variable_answers_is_written(world, parts, tmp_path):
    ev = make(parts=parts)
    step = world.step(lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids)), [ev])
    writer = tf_multitier.StatisticsWriter(tmp_path)
    for number in range(3):
        step(np.arange(10 * (number + 1)))
        writer.write(number, {"user": world.run(ev.stats)})
    writer.close()
    assert events(tmp_path)["rows/user"] == [(0, 10), (1, 20), (2, 30)]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_variable_is_read_in_eager_execution_alone(parts, tmp_path):
    writer = tf_multitier.StatisticsWriter(tmp_path)
    ev = make(parts=parts)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, tf.range(7)))
    optimizer = tf_multitier.optimizers.SGD(0.1)
    optimizer.apply_gradients([(tape.gradient(loss, ev), ev)])
    assert writer.write(0, {"user": ev})["rows/user"] == 7
    in_function = tf.autograph.experimental.do_not_convert(lambda: writer.write(0, {"a": ev}))
    with pytest.raises(TypeError, match="found the tensor '.*' of a graph"):
        tf.function(in_function)()
    found = ev.stats()
    assert found["applies"] == 1 and found["rows"] == 7
    for part in found.get("parts", []):  # the sums have each field, but what is listed alone
        assert part.keys() <= found.keys() and part["tiers"][0].keys() <= found["tiers"][0].keys()
    with tf.Graph().as_default():
        ev = make(parts=parts)
        chosen = v1.cond(tf.constant(True), ev.stats, lambda: "none")
        assert isinstance(chosen, tf.Tensor)
        with pytest.raises(TypeError, match=r"expected .* what session.run\(ev.stats\(\)\) gives"):
            writer.write(1, {"user": ev})
    writer.close()


def train(hook, steps, parts=1):
    """Trains two variables under a hook. Returns the number of session.run calls that read statistics."""
    with tf.Graph().as_default():
        for name in ("user", "scope/item"):
            variable = tf_multitier.get_embedding_variable(
                name, 4, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None
            )
            rows = tf.nn.embedding_lookup(variable, tf.constant([1, 2, 3], tf.int64))
            loss = tf.reduce_sum((rows - 1) ** 2)
        step = v1.train.get_or_create_global_step()
        op = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(steps):
                session.run(op)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_hook_writes_every_n_steps(tmp_path, parts):
    train(tf_multitier.train.StatisticsHook(tmp_path, save_steps=3), 10, parts)
    found = events(tmp_path)
    assert [step for step, _ in found["rows/scope/item"]] == [0, 3, 6, 9]
    assert found["rows/scope/item"][-1][1] == 3
    assert found["rows/all"][-1][1] == 3  # the variable `user` was not trained
    assert "updates_per_s/all" in found


def test_the_hook_writes_totals_alone(tmp_path):
    train(tf_multitier.train.StatisticsHook(tmp_path, save_secs=1e-6, per_variable=False), 3)
    assert {tag.split("/")[-1] for tag in events(tmp_path)} == {"all"}


def test_the_hook_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(ValueError):
        tf_multitier.train.StatisticsHook(tmp_path, save_steps=1, save_secs=1)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="expected embedding variables"):
        tf_multitier.train.StatisticsHook(tmp_path).begin()


def test_readings_of_all_forms_are_taken(tmp_path):
    writer = tf_multitier.StatisticsWriter(tmp_path)
    text = json.dumps(reading())
    for table in (reading(), [reading()], text, text.encode(), np.array(text.encode(), object)):
        assert writer.write(0, {"t": table})["rows/t"] == 5
    writer.close()
