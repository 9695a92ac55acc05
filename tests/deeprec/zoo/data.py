"""Writes the data of the programs: python3 data.py {criteo,kaggle,taobao,amazon} FOLDER [--rows FILE] [--count N]

Labels follow hidden tastes of ids, so that a model which learns embeddings lowers its loss. Each kind is written as text, as the zoo's
scripts read it, and as Parquet.
"""

import argparse
import os

import numpy as np
import pyarrow
import pyarrow.parquet

CATEGORIES = int(os.environ.get("ZOO_CATEGORIES", "26"))
CRITEO = ["clicked"] + [f"I{i}" for i in range(1, 14)]
CRITEO += [f"C{i}" for i in range(1, 1 + CATEGORIES)]
TAOBAO_IDS = (
    "pid adgroup_id cate_id campaign_id customer brand user_id cms_segid cms_group_id final_gender_code age_level pvalue_level "
    "shopping_level occupation new_user_class_level"
).split()
TAOBAO_TAGS = ["tag_category_list", "tag_brand_list"]
TAOBAO = ["clk", "buy"] + TAOBAO_IDS + TAOBAO_TAGS + ["price"]
LABELS = ["clicked", "clk", "buy", "CLICKED"]
SEPARATOR = "\x02"  # between the items of a history


def write(folder, name, columns, delimiter, suffix):
    """columns: a dict from names to equally long lists. `name` + `suffix` is the text file, in which whole numbers have no point."""
    rows = zip(
        *(
            [f"{x:g}" if isinstance(x, float) else str(x) for x in column]
            for column in columns.values()
        )
    )
    with open(os.path.join(folder, name + suffix), "w", encoding="utf-8") as file:
        file.writelines(delimiter.join(row) + "\n" for row in rows)
    arrays = {key: pyarrow.array(column) for key, column in columns.items()}
    arrays = {
        key: array.cast(pyarrow.int32()) if key in LABELS else array
        for key, array in arrays.items()
    }
    pyarrow.parquet.write_table(
        pyarrow.table(arrays), os.path.join(folder, name + ".parquet"), row_group_size=500
    )


def click(random, scores):
    return (
        (random.random(len(scores)) < 1 / (1 + np.exp(-3 * np.asarray(scores))))
        .astype(int)
        .tolist()
    )


def click_columns(count, rows, most=200):
    """{column: list}: generated, or read from a file of the Criteo log. I10 is a whole number below 10, as in the log."""
    random = np.random.default_rng(1)
    if rows:
        with open(rows, encoding="utf-8") as file:
            table = list(zip(*(line.rstrip("\n").split("\t") for line in file)))
        columns = {CRITEO[0]: [int(float(label)) for label in table[0]]}
        columns.update(
            {
                name: [min(float(x or 0), 50.0) for x in table[i]]
                for i, name in enumerate(CRITEO)
                if 1 <= i < 14
            }
        )
        columns.update({name: list(table[i]) for i, name in enumerate(CRITEO) if i >= 14})
    else:
        ids = {name: np.minimum(random.zipf(1.4, count), most) for name in CRITEO[14:]}
        tastes = random.normal(size=(6, most + 1))
        scores = sum(tastes[i][ids[f"C{i + 1}"]] for i in range(6))
        columns = {"clicked": click(random, scores)}
        columns.update(
            {name: random.integers(0, 50, count).astype(float).tolist() for name in CRITEO[1:14]}
        )
        columns.update({name: [f"{x:08x}" for x in column] for name, column in ids.items()})
    columns["I10"] = [float(max(0, int(x)) % 10) for x in columns["I10"]]
    return columns


def write_clicks(folder, columns):
    for name, part in (("train", slice(None)), ("eval", slice(0, 300))):
        write(folder, name, {key: column[part] for key, column in columns.items()}, ",", ".csv")


def criteo(folder, count, rows, most=200):
    write_clicks(folder, click_columns(count, rows, most))


def kaggle(folder, count, rows, most=200):
    """The click rows, with numbers for ids."""
    columns = click_columns(count, rows, most)
    columns.update({name: [int(x or "0", 16) for x in columns[name]] for name in CRITEO[14:]})
    write_clicks(folder, columns)


def taobao(folder, count, *_):
    random = np.random.default_rng(2)
    ids = {name: random.integers(0, 60, count) for name in TAOBAO_IDS}
    tastes = random.normal(size=(2, 2, 60))
    scores = [
        tastes[label][0][ids["user_id"]] + tastes[label][1][ids["brand"]] for label in range(2)
    ]
    columns = {"clk": click(random, scores[0]), "buy": click(random, scores[1])}
    columns.update({name: [str(x) for x in column] for name, column in ids.items()})
    lengths = random.integers(
        1, 8, count
    )  # an example has as many tags of one kind as of the other
    for name in TAOBAO_TAGS:
        columns[name] = ["|".join(str(x) for x in random.integers(0, 40, n)) for n in lengths]
    columns["price"] = [str(x) for x in random.integers(0, 50, count)]
    for name, part in (("taobao_train_data", slice(None)), ("taobao_test_data", slice(0, 300))):
        write(folder, name, {key: column[part] for key, column in columns.items()}, ",", "")


def amazon(folder, count, *_):
    random = np.random.default_rng(3)
    items, categories, users = 300, 20, 100
    for name, size in (("train", count), ("test", 300)):
        columns = {
            key: []
            for key in ("CLICKED", "UID", "ITEM", "CATEGORY", "HISTORY_ITEM", "HISTORY_CATEGORY")
        }
        others = {key: [] for key in ("NOCLK_HISTORY_ITEM", "NOCLK_HISTORY_CATEGORY")}
        for _ in range(size):
            user, length, clicked = (
                int(random.integers(users)),
                int(random.integers(2, 12)),
                int(random.integers(2)),
            )
            history = (user % 10 * 30 + random.integers(0, 30, length)) % items
            item = int(history[0]) if clicked else int(random.integers(items))
            skipped = random.integers(0, items, length)
            columns["CLICKED"].append(clicked)
            columns["UID"].append(f"u{user}")
            columns["ITEM"].append(f"i{item}")
            columns["CATEGORY"].append(f"c{item % categories}")
            for key, prefix, numbers in (
                ("ITEM", "i", lambda x: x),
                ("CATEGORY", "c", lambda x: x % categories),
            ):
                columns["HISTORY_" + key].append(
                    SEPARATOR.join(f"{prefix}{numbers(x)}" for x in history)
                )
                others["NOCLK_HISTORY_" + key].append(
                    SEPARATOR.join(f"{prefix}{numbers(x)}" for x in skipped)
                )
        write(folder, f"local_{name}_splitByUser", columns, "\t", "")
        write(folder, f"local_{name}_splitByUser_neg", others, "\t", "")
    for name, prefix, size in (("uid", "u", users), ("mid", "i", items), ("cat", "c", categories)):
        with open(os.path.join(folder, name + "_voc.txt"), "w", encoding="utf-8") as file:
            file.writelines(
                f"{word}\n" for word in ["default", *(f"{prefix}{i}" for i in range(size))]
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["criteo", "kaggle", "taobao", "amazon"])
    parser.add_argument("folder")
    parser.add_argument("--rows")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--ids", type=int, default=200, help="largest id of a column of click rows")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    {"criteo": criteo, "kaggle": kaggle, "taobao": taobao, "amazon": amazon}[args.kind](
        args.folder, args.count, args.rows, args.ids
    )


if __name__ == "__main__":
    main()
