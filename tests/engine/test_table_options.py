"""Storage options of tables: each bad one is one clear error that leaves nothing behind."""

import os

import numpy as np
import pytest
from engine_process import run
from engine_util import train

from tf_multitier import CacheStrategy
from tf_multitier import StorageType
from tf_multitier import engine


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            dict(storage_path="~/store"),
            engine.NotFoundError,
            r"storage path '.*~/store': .* make the folders above \(~ is not replaced\)$",
        ),
        (
            dict(storage_path="file"),
            ValueError,
            "storage path '.*file': expected a directory, found something else",
        ),
        (
            dict(storage_path="file/below"),
            engine.NotFoundError,
            "storage path '.*file/below': expected a directory, or a new name in one, found neither: make the folders above$",
        ),
        (
            dict(storage_path="n" * 300),
            ValueError,
            "create storage path of '.*n': File name too long",
        ),
        (
            dict(storage_path=""),
            ValueError,
            "storage_path: expected a directory for the files of storage_type DRAM_SSDHASH, found none",
        ),
        (
            dict(storage_size=[0]),
            ValueError,
            r"storage_size\[0\]: expected 1 to .* bytes, .*found 0",
        ),
        (
            dict(storage_size=[64, -5]),
            ValueError,
            r"storage_size\[1\]: expected 1 to .* bytes, .*found -5",
        ),
        (
            dict(storage_size=[64, 64, 64]),
            ValueError,
            "expected at most 2, one for each tier of DRAM_SSDHASH; found 3",
        ),
        (
            dict(storage_size=["64G"]),
            ValueError,
            r"storage_size\[0\]: expected 1 to .* bytes, or text such as 4GB or 512 MiB, found '64G'",
        ),
        (
            dict(storage_size={"DRAMM": 64}),
            ValueError,
            "storage_size: expected one of DRAM, SSDHASH; found 'DRAMM': did you mean 'DRAM'?",
        ),
        (
            dict(storage_size=64.5),
            ValueError,
            r"storage_size\[0\]: expected an integer of bytes, .*found 64.5",
        ),
        (dict(storage_size=[8]), ValueError, r"at least one row \(16 bytes\), found 8"),
        (
            dict(storage_type="HBM_DRAM_SSDHASH"),
            NotImplementedError,
            "needs a build with CUDA and a GPU",
        ),
        (dict(storage_type="TAPE"), ValueError, "storage_type: expected one of .*; found 'TAPE'"),
        (dict(storage_type=12), ValueError, "storage_type: expected text, found 12"),
        (dict(name=7), ValueError, "name: expected text, found 7"),
        (dict(b="wide"), ValueError, "initializer.b: expected a finite number, found 'wide'"),
        (dict(dim=4.5), ValueError, "dim: expected an integer, found 4.5"),
        (
            dict(dim=2**31),
            ValueError,
            "dim: expected 1 to 1048576, found 2147483648",
        ),
        (
            dict(seed=-1),
            ValueError,
            "initializer.seed: expected 0 to 18446744073709551615, found -1",
        ),
        (
            dict(filter_freq=2**32),
            ValueError,
            "filter.filter_freq: expected 0 to 4294967295, found 4294967296",
        ),
        (
            dict(slots=[("m", 2.5, 0.0)]),
            ValueError,
            r"slots\[0\].dim: expected an integer, found 2.5",
        ),
        (dict(storage_size=[2**70]), ValueError, r"storage_size\[0\]: expected 1 to "),
        (dict(num_shards=True), ValueError, "num_shards: expected an integer, found True"),
        (dict(keep="no"), ValueError, "keep: expected True or False, found 'no'"),
        (
            dict(cache_strategy=1),
            ValueError,
            "cache_strategy: expected one of DEFAULT, .*; found 1",
        ),
        (
            dict(cache_strategy="FIFO"),
            ValueError,
            "cache_strategy: expected one of DEFAULT, LRU, LFU, SCORE; found 'FIFO'",
        ),
        (
            dict(on_corruption="ignore"),
            ValueError,
            "on_corruption: expected one of error, reinit, drop; found 'ignore'",
        ),
        (dict(drop_coldest=True), ValueError, "drop_coldest: expected the size of the last tier"),
        (
            dict(storage_type="DRAM", keep=True),
            ValueError,
            "keep: expected a storage_type with files, found DRAM",
        ),
    ],
)
def test_bad_options_are_one_clear_error_and_leave_nothing(options, error, message, tmp_path):
    (tmp_path / "file").write_text("")
    path = options.get("storage_path", "store")
    options = (
        dict(dim=4, storage_type="DRAM_SSDHASH", storage_size=[64])
        | options
        | {"storage_path": str(tmp_path / path) if path else ""}
    )
    with pytest.raises(error, match=message) as caught:
        engine.Table(**options)
    assert "\n" not in str(caught.value)
    left = [name for name in os.listdir(tmp_path) if name != "store"]
    assert left == ["file"] and not (
        os.path.isdir(tmp_path / "store") and os.listdir(tmp_path / "store")
    )


def test_options_may_be_written_as_those_of_a_variable(tmp_path):
    table = engine.Table(
        dim=4,
        storage_type=StorageType.DRAM_SSDHASH,
        storage_path=tmp_path,
        storage_size=4 * 32,
        cache_strategy=CacheStrategy.LRU,
    )
    train(table, np.arange(8))
    table.drain()
    assert [tier["name"] for tier in table.stats()["tiers"]] == ["dram", "ssdhash"]
    assert table.lookup_tier(np.arange(8)).tolist() == [1] * 4 + [0] * 4
    for sizes in (None, [], (64,), [np.int64(64), 1 << 40]):
        engine.Table(
            dim=4,
            storage_type="DRAM_SSDHASH",
            storage_path=tmp_path,
            storage_size=sizes,
            cache_strategy=None,
        )


@pytest.mark.parametrize(
    "variable, value",
    [
        ("TF_SSDHASH_ASYNC_COMPACTION", "yes"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "many"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "0"),
        ("TF_MULTI_TIER_EV_EVICTION_THREADS", "65"),
    ],
)
def test_bad_environment_values_are_refused_by_name(variable, value, tmp_path):
    said = run(
        """
        say(error(lambda: engine.Table(dim=4, storage_type="SSDHASH", storage_path=arguments[0])))
    """,
        str(tmp_path),
        environment={variable: value},
    )
    assert said[0] == "ValueError" and variable in said[1] and f"'{value}'" in said[1]
    assert os.listdir(tmp_path) == []
