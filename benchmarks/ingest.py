"""How fast tables become events and features without texts, beside polars alone parsing the same file.

    python benchmarks/ingest.py [--rows 200000] [--file FILE]

Makes one table of texts, numbers, categories and times as JSONL (gzip), CSV and Parquet, or takes a file. Features are
fitted on the first chunk and made of every chunk: numbers and categories. Once with texts read and checked as well
(embedding them is another matter), and once with a schema that has no text, so that they are not read where a format
lets one leave a column alone; polars reads every column each time. All are timed in turns, so that a busy moment of the
machine falls on them alike, and the median of each is kept. Prints progress, and one JSON object as its last line:
rows/s of each and their ratios to polars, by the clock and by processor time, for every file, and the worst of all.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recollect.data.feature_fitting import fit_features
from recollect.data.inference import infer_schema
from recollect.data.intake import Intake
from recollect.data.reading import first_rows, read_events
from recollect.data.schema import TableSchema

WORDS = ["the", "of", "and", "to", "a", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as"]


def make_table(rows: int) -> pl.DataFrame:
    """Reviews of a shop, or something like them: about 300 bytes each."""
    generator = np.random.default_rng(0)
    words = np.array(WORDS)[generator.integers(0, len(WORDS), (rows, 40))]
    lengths = generator.integers(5, 40, rows)
    moments = 1_600_000_000 + np.sort(generator.integers(0, 10**8, rows))
    return pl.DataFrame(
        {
            "id": [f"R{number:09d}" for number in range(rows)],
            "time": pl.Series(moments * 1000).cast(pl.Datetime("ms")).dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "label": generator.integers(1, 6, rows),
            "text": [f'{" ".join(row[:length])}, "really"' for row, length in zip(words, lengths, strict=True)],
            "price": generator.lognormal(3, 1, rows).round(2),
            "weight": pl.Series(generator.normal(0, 1, rows)).set(pl.Series(generator.random(rows) < 0.1), None),
            "votes": generator.integers(0, 100, rows),
            "category": np.array(["camera", "laptop", "phone", "book"])[generator.integers(0, 4, rows)],
            "shop": [f"shop {number}" for number in generator.integers(0, 500, rows)],
        }
    )


def write_files(folder: Path, rows: int) -> list[Path]:
    table = make_table(rows)
    paths = [folder / f"reviews.{ending}" for ending in ("jsonl.gz", "csv", "parquet")]
    paths[0].write_bytes(gzip.compress(table.write_ndjson().encode(), 6))
    table.write_csv(paths[1])
    table.write_parquet(paths[2])
    return paths


def by_polars(path: Path) -> int:
    name = path.name
    if ".csv" in name:
        return pl.read_csv(path, infer_schema_length=1000).height
    return (pl.read_parquet(path) if name.endswith(".parquet") else pl.read_ndjson(path)).height


def by_us(path: Path, schema: TableSchema, without_texts: TableSchema) -> int:
    intake: Intake | None = None
    rows = 0
    for events in read_events(path, schema, bad_rows="skip"):
        if intake is None:
            features = fit_features(events.columns, without_texts)
            intake = Intake(without_texts, features, None, valued=without_texts.categorical)
        made = intake(events.columns, {})
        rows += len(events)
        assert all(len(values) == len(events) for values in made.values())
    return rows


def compare(path: Path, repeats: int) -> dict[str, float]:
    schema = infer_schema(first_rows(path))
    without_texts = replace(schema, text=(), ignored={**schema.ignored, **dict.fromkeys(schema.text, "a text")})
    tasks: dict[str, Callable[[], int]] = {
        "polars": lambda: by_polars(path),
        "ours": lambda: by_us(path, schema, without_texts),
        "no_text": lambda: by_us(path, without_texts, without_texts),
    }
    rows = {name: task() for name, task in tasks.items()}  # once for nothing: libraries load, pages come into memory
    if rows["polars"] != rows["ours"]:
        print(f"{path.name}: polars reads {rows['polars']} rows, we {rows['ours']} (bad rows left out)", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    processor: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            begin, used = time.perf_counter(), time.process_time()
            task()
            seconds[name].append(time.perf_counter() - begin)
            processor[name].append(time.process_time() - used)
    rates = {name: rows[name] / statistics.median(taken) for name, taken in seconds.items()}
    work = {name: statistics.median(taken) for name, taken in processor.items()}
    found: dict[str, float] = {f"{name}_rows_per_s": round(rate) for name, rate in rates.items()}
    for name, ending in (("ours", ""), ("no_text", "_no_text")):
        found[f"ratio{ending}"] = round(rates[name] / rates["polars"], 3)
        # By processor time of all threads, which a busy machine hardly changes.
        found[f"processor_ratio{ending}"] = round(work["polars"] / work[name], 3)
    print(
        f"{path.name}: polars {rates['polars']:,.0f} rows/s, ours {rates['ours']:,.0f} (ratio {found['ratio']:.2f}), "
        f"without its texts {rates['no_text']:,.0f} ({found['ratio_no_text']:.2f})",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--file", type=Path, help="a file of your own instead (.jsonl, .csv or .parquet)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [arguments.file] if arguments.file else write_files(Path(folder), arguments.rows)
        formats = {"".join(path.suffixes).lstrip("."): compare(path, arguments.repeats) for path in paths}
    result: dict[str, Any] = {"formats": formats}
    for name in ("ratio", "processor_ratio", "ratio_no_text", "processor_ratio_no_text"):
        result[name] = min(each[name] for each in formats.values())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
