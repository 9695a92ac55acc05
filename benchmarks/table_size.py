r"""Cost of one key in the engine while a table grows from 1 M to 40 M keys: lookup, Adagrad apply, insert; one thread.

    python3 configure.py bench
    python benchmarks/table_size.py --plot=table_size.png

Runs cc/table/benchmark/embedding_table_benchmark (NumPy's own costs would blur 20 ns) and reads its JSON. Dim 16 with an Adagrad slot, 65,536
uniform keys a batch. 40 M keys need 8 GiB of memory.
"""

import re

from absl import app
from absl import flags

import driver

FLAGS = flags.FLAGS
flags.DEFINE_integer("max_millions", 40, "Leave larger sizes out.", lower_bound=1)
flags.DEFINE_float(
    "min_time", 0.5, "Seconds that each measurement takes at least.", lower_bound=0.01
)
flags.DEFINE_integer(
    "repetitions", 3, "Runs of each measurement; the median counts.", lower_bound=1
)
flags.DEFINE_string("plot", None, "PNG to write.")

FAMILIES = {
    "BM_Lookup": "lookup",
    "BM_Apply": "Adagrad apply",
    "BM_Fill": "insert, from empty",
}  # ns a key


def output():
    """The benchmark's JSON."""
    sizes = [millions for millions in (1, 2, 5, 10, 20, 40) if millions <= FLAGS.max_millions]
    names = "|".join(str(millions << 20) for millions in sizes)
    return driver.output_of_program(
        "cc/table/benchmark/embedding_table_benchmark",
        f"--benchmark_filter=^({'|'.join(FAMILIES)})/({names})(/|$)",
        "--benchmark_format=json",
        f"--benchmark_min_time={FLAGS.min_time}",
        f"--benchmark_repetitions={FLAGS.repetitions}",
    )


def costs(report):
    """{family: {rows: median ns a key}} and {rows: index bytes a key}."""
    found, samples, index_bytes = {}, {}, {}
    for entry in report["benchmarks"]:
        match = re.match(r"(BM_\w+)/(\d+)", entry["name"])
        if match is None or match[1] not in FAMILIES or entry["run_type"] != "iteration":
            continue
        rows = int(match[2])
        samples.setdefault((match[1], rows), []).append(entry["ns/key"])
        if "index bytes/key" in entry:
            index_bytes[rows] = entry["index bytes/key"]
    for (family, rows), values in samples.items():
        found.setdefault(family, {})[rows] = sorted(values)[len(values) // 2]
    return found, index_bytes


def plot(found, path):
    """One line a family over the table's size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for family, title in FAMILIES.items():
        by_rows = sorted(found.get(family, {}).items())
        if by_rows:
            axes.plot(
                [rows / 2**20 for rows, _ in by_rows],
                [ns for _, ns in by_rows],
                marker="o",
                label=title,
            )
    axes.set_xscale("log")
    ticks = sorted({rows >> 20 for by_rows in found.values() for rows in by_rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("keys in the table, x 2^20")
    axes.set_ylabel("ns a key, one thread")
    axes.set_title("dim 16 + Adagrad slot, batches of 65,536 uniform keys")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def measure(_):
    found, index_bytes = costs(output())
    for rows in sorted({rows for by_rows in found.values() for rows in by_rows}):
        ns = {FAMILIES[name]: its[rows] for name, its in found.items() if rows in its}
        driver.note(f"{rows} keys".ljust(14), **ns, index_bytes=index_bytes.get(rows, 0))
    if FLAGS.plot:
        plot(found, FLAGS.plot)


def main(argv):
    driver.run(argv, {"size": measure})


if __name__ == "__main__":
    app.run(main)
