"""The options of one_embedding: OneFlow's dicts, and what is no option."""

import copy

import numpy as np
import pytest
import tensorflow as tf
from one_embedding_util import embedding
from one_embedding_util import tables_of

from tf_multitier import one_embedding as oe
from tf_multitier.one_embedding.stores import Store


def test_the_functions_return_the_dicts_of_oneflow():
    uniform = {"type": "uniform", "low": 0.0, "high": 1.0}
    assert oe.make_uniform_initializer() == uniform
    assert oe.make_normal_initializer() == {"type": "normal", "mean": 0.0, "std": 1.0}
    assert oe.make_constant_initializer(2) == {"type": "constant", "value": 2}
    assert oe.make_trunc_normal_initializer() == {
        "type": "trunc_normal",
        "mean": 0.0,
        "std": 1.0,
        "a": -2.0,
        "b": 2.0,
    }
    column = oe.make_column_options(uniform)
    assert column == {"initializer": uniform}
    for make in (oe.make_table, oe.make_table_options):
        assert make(uniform) == {"initializer": uniform}
        assert make([column]) == {"columns": [column]}
    table = {"path": "/ssd", "physical_block_size": 4096, "capacity_hint": 7}
    lru = {"policy": "lru", "cache_memory_budget_mb": 3, "value_memory_kind": "device"}
    assert oe.make_device_mem_store_options("/ssd", 7) == {
        "kv_store": {
            "caches": [{"policy": "full", "capacity": 7, "value_memory_kind": "device"}],
            "persistent_table": table,
        },
        "size_factor": 1,
        "storage_dim": -1,
    }
    host = oe.make_cached_host_mem_store_options(3, "/ssd", 7)
    assert host == oe.make_cached_host_mem_store_option(3, "/ssd", 7)
    full = {"policy": "full", "capacity": 7, "value_memory_kind": "host"}
    assert host["kv_store"]["caches"] == [lru, full]
    both = oe.make_cached_ssd_store_options(3, "/ssd", host_cache_budget_mb=4)
    assert both["kv_store"]["caches"] == [
        lru,
        {**lru, "cache_memory_budget_mb": 4, "value_memory_kind": "host"},
    ]


STORES = [
    (oe.make_device_mem_store_options("/s", 9), "DRAM", [], [9], "HBM", [], [9]),
    (
        oe.make_cached_host_mem_store_options(1, "/s", 9, size_factor=2),
        *("DRAM", [], [9]),
        *("HBM_DRAM", [], [2**20 // 64, 9]),
    ),
    (
        oe.make_cached_ssd_store_options(1, "/s", 40_000_000, host_cache_budget_mb=2),
        *("DRAM_SSDHASH", [3 * 2**20], []),
        *("HBM_DRAM_SSDHASH", [2**20, 2 * 2**20], []),
    ),
    (
        oe.make_cached_ssd_store_options(1, "/s"),
        *("DRAM_SSDHASH", [2**20], []),
        *("HBM_DRAM_SSDHASH", [2**20, 64 * 2**20], []),
    ),
    (
        oe.make_cached_ssd_store_options(0, "/s", host_cache_budget_mb=2),
        *("DRAM_SSDHASH", [2 * 2**20], []),
        *("DRAM_SSDHASH", [2 * 2**20], []),
    ),
]


@pytest.mark.parametrize("case", STORES)
def test_a_store_is_a_storage_option(case):
    store, *expected = case
    for on_gpu in (False, True):
        kind, sizes, rows = expected[3 * on_gpu : 3 * on_gpu + 3]
        made = Store(store, 8).option(on_gpu)
        assert (made.storage_type.name, list(made.storage_size)) == (kind, sizes)
        assert list(made.storage_rows) == rows
        assert "SSDHASH" not in kind or made.storage_path == "/s/0-1"


def test_the_device_is_chosen_before_the_first_use(tmp_path, monkeypatch, emulated_device):
    made = embedding(tmp_path / "a", tables_of(1)).to("cuda:0")
    assert made.variable.table_options["storage_type"] == "HBM"
    with pytest.raises(RuntimeError, match="before the first use, found rows on cuda"):
        made.to("cpu")
    monkeypatch.delenv("TF_MULTITIER_DEVICE")
    other = embedding(tmp_path / "b", tables_of(1), name="other").to("cuda")
    assert other.variable.table_options["storage_type"] == "DRAM"
    with pytest.raises(ValueError, match="expected 'cpu' or 'cuda', found 'tpu'"):
        other.to("tpu")


BAD_VALUES = [
    (lambda: oe.make_uniform_initializer(1, 1), "expected low < high, found low=1.0 and high=1.0"),
    (lambda: oe.make_normal_initializer(0, -1), "std: expected at least 0, found -1"),
    (lambda: oe.make_trunc_normal_initializer(a=2, b=1), "expected a < b, found a=2.0 and b=1.0"),
    (lambda: oe.make_trunc_normal_initializer(std=0), "std: expected more than 0"),
    (lambda: oe.make_constant_initializer("x"), "value: expected a finite number"),
    (lambda: oe.make_constant_initializer(float("nan")), "expected a finite number"),
    (lambda: oe.make_table_options(3), "expected an initializer"),
    (lambda: oe.make_table_options([]), "at least one column"),
    (lambda: oe.make_table_options({"type": "zeros"}), "whose 'type' is uniform, normal"),
    (lambda: oe.make_table_options({"type": "normal", "mean": 0}), "expected the key 'std'"),
    (lambda: oe.make_column_options({"type": "constant"}), "expected the key 'value'"),
    (lambda: oe.make_device_mem_store_options("/s", 0), "capacity: expected at least 1, found 0"),
    (lambda: oe.make_cached_host_mem_store_options(0, "/s", 1), "cache_budget_mb: expected more"),
    (
        lambda: oe.make_device_mem_store_options("/s", 2**33),
        "capacity: expected at most 4294967296",
    ),
    (lambda: oe.make_cached_ssd_store_options(1e-9, "/s"), "cache_budget_mb: expected 0 or more"),
    (lambda: oe.make_cached_ssd_store_options(1e30, "/s"), "cache_budget_mb: expected at most"),
    (lambda: oe.make_cached_ssd_store_options(0, "/s"), "expected one of them above 0"),
    (
        lambda: oe.make_cached_ssd_store_options(-1, "/s"),
        "expected 0 or more than a byte in MiB, found -1",
    ),
    (lambda: oe.make_cached_ssd_store_options(1, "/s", 0), "capacity: expected at least 1"),
    (lambda: oe.make_device_mem_store_options("", 1), "persistent_path"),
    (lambda: oe.make_device_mem_store_options("a\0", 1), "persistent_path: .* null characters"),
    (lambda: oe.make_device_mem_store_options("\udcff", 1), "persistent_path: .* text in UTF-8"),
    (lambda: oe.make_device_mem_store_options(3, 1), "persistent_path: expected a path"),
    (
        lambda: oe.make_device_mem_store_options("/s", 1, physical_block_size=1024),
        "physical_block_size: expected 512 or 4096, found 1024",
    ),
    (lambda: oe.make_device_mem_store_options("/s", 1, size_factor=0), "size_factor"),
    (lambda: oe.make_device_mem_store_options("/s", 1, storage_dim=0), "storage_dim"),
    (
        lambda: oe.make_device_mem_store_options("/s", 1, storage_dim=np.array([1, 2])),
        "storage_dim: expected an integer, found array",
    ),
    (lambda: oe.make_table_options({"type": ["zeros"]}), "whose 'type' is uniform, normal"),
    (lambda: oe.Ftrl(beta="x"), "Ftrl: beta: expected a finite number, found 'x'"),
    (lambda: oe.Ftrl(lambda2=None), "Ftrl: lambda2: expected a finite number, found None"),
]


@pytest.mark.parametrize(("make", "message"), BAD_VALUES)
def test_a_bad_value_of_an_option_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def _changed(store, *path, value):
    """A copy of a store's dict with another value at a path; value None: without it."""
    store = copy.deepcopy(store)
    inner = store
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return store


_CONSTANT = {"type": "constant", "value": 0}
_STORE = oe.make_cached_ssd_store_options(1, "/s")
_CACHE = _STORE["kv_store"]["caches"][0]
MODULES = [
    (dict(name=""), "name: expected a name"),
    (dict(name=3), "name: expected a name"),
    (dict(embedding_dim=0), "embedding_dim: expected at least 1"),
    (dict(embedding_dim=[4, 4]), "use MultiTableMultiColumnEmbedding"),
    (dict(dtype=tf.float64), "dtype: expected float32, bfloat16, float16; found float64"),
    (dict(key_type=tf.int16), "key_type: expected int64"),
    (dict(tables=[]), "expected 1 to 65535 tables, found 0"),
    (dict(tables=[{}] * 65_536), "expected 1 to 65535 tables, found 65536"),
    (dict(tables=[{"initializer": _CONSTANT, "columns": []}]), "either 'initializer' or 'columns'"),
    (dict(tables=[{"columns": [{"initializer": _CONSTANT}] * 2}]), "a list of 1 columns"),
    (dict(tables=[{"initializer": {"type": "ones"}}]), r"tables\[0\]: expected an initializer"),
    (dict(tables=_CONSTANT), "tables: expected a list"),
    (dict(default_initializer={"type": "ones"}), "default_initializer"),
    (dict(padding_idx=2**63), "padding_idx: expected at most"),
    (dict(on_repeated_id="ignore"), "on_repeated_id: expected 'share' or 'error'"),
    (dict(on_repeated_id=tf.constant(1)), "on_repeated_id: expected 'share' or 'error', found"),
    (dict(store_options={}), "store_options: expected the key 'kv_store'"),
    (dict(store_options=_changed(_STORE, "kv_store", "caches", value=None)), "the key 'caches'"),
    (dict(store_options=_changed(_STORE, "kv_store", "caches", value=[])), "one or two caches"),
    (
        dict(store_options=_changed(_STORE, "storage_dim", value=2)),
        "storage_dim: expected at least 4",
    ),
    (
        dict(
            store_options=_changed(_STORE, "kv_store", "persistent_table", "path", value=["a", "b"])
        ),
        "expected a list of 1 path, one for each rank, found 2",
    ),
    (
        dict(store_options=_changed(_STORE, "kv_store", "caches", 0, "policy", value="lfu")),
        "whose 'policy' is lru or full",
    ),
    (
        dict(store_options=_changed(_STORE, "kv_store", "caches", 0, "capacity", value=3)),
        "found the key 'capacity'",
    ),
    (dict(store_options=_changed(_STORE, "kv_store", "caches", value=[_CACHE, _CACHE])), "caches"),
]


@pytest.mark.parametrize(("arguments", "message"), MODULES)
def test_a_bad_argument_of_a_module_is_refused_when_it_is_made(arguments, message):
    given = dict(
        name="e",
        embedding_dim=4,
        dtype=tf.float32,
        key_type=tf.int64,
        tables=tables_of(1),
        store_options=_STORE,
    )
    with pytest.raises((ValueError, TypeError), match=message):
        oe.MultiTableEmbedding(**{**given, **arguments})


def test_a_live_embedding_has_its_name_and_folder(tmp_path):
    made = embedding(tmp_path / "a", tables_of(1))
    with pytest.raises(ValueError, match="name: expected another one .* live embedding 'e'"):
        embedding(tmp_path / "b", tables_of(1))
    with pytest.raises(ValueError, match="persistent_path: expected another one"):
        embedding(tmp_path / "a" / ".", tables_of(1), name="other")
    del made
    embedding(tmp_path / "a", tables_of(1))


def test_no_dict_is_changed_and_a_list_of_one_path_is_the_folder(tmp_path):
    store = oe.make_cached_ssd_store_options(1, [str(tmp_path / "own")])
    tables = tables_of(2, 2)
    before = copy.deepcopy((store, tables))
    made = embedding(tmp_path, tables, [2, 3], store=store)
    made.parameters()
    assert (store, tables) == before
    assert made.variable.table_options["storage_path"] == str(tmp_path / "own")


def test_without_tables_there_is_one_of_the_default_initializer(tmp_path):
    made = embedding(tmp_path / "a", dim=64)
    values = made(np.arange(1000)).numpy()
    assert abs(values.mean()) < 1e-3 and abs(values.std() - 0.05) < 1e-3
    other = embedding(
        tmp_path / "b", dim=64, name="b", default_initializer=oe.make_constant_initializer(3)
    )
    assert (other(np.arange(10)).numpy() == 3).all()
