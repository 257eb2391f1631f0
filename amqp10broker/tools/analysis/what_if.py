"""Applies `tools.replay.many` to files of recorded frames, in this process or with a Spark task per file.

Importing this module does not need Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.observe.frames.records import NoFrames, read_lines
from amqp10broker.tools.analysis.errors import NothingToAnalyse
from amqp10broker.tools.replay.forecast import Settings
from amqp10broker.tools.replay.many import COLUMNS, Answer, answer, table_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of the files of ``serve --record-frames``.
SUFFIX: Final = ".jsonl"


def files_of(names: Sequence[str]) -> list[str]:
    """Return the files, with ``*.jsonl`` of a folder in order, and each only once. Raises `NothingToAnalyse`
    if a folder has none.
    """
    found: dict[str, None] = {}
    for name in names:
        if not Path(name).is_dir():
            found[name] = None
            continue
        inside = sorted(str(path) for path in Path(name).glob(f"*{SUFFIX}") if path.is_file())
        if not inside:
            advice = "name a folder that `serve --record-frames` has written to, or a file"
            raise NothingToAnalyse(name, f"it has no file *{SUFFIX}", advice)
        found |= dict.fromkeys(inside)
    return list(found)


def answer_of_file(path: str, settings: Sequence[Settings], connection: int | None = None) -> Answer:
    """Forecast one file; a file that is unreadable or not a recording gives an answer with a problem.
    `connection`: this one alone; None for all.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return answer(path, read_lines(lines), settings, connection)
    except OSError as error:
        return Answer(path, problem=f"it cannot be read: {error.strerror}")
    except NoFrames as error:
        return Answer(path, problem=str(error))


def answers(
    spark: SparkSession, paths: Sequence[str], settings: Sequence[Settings], connection: int | None = None
) -> list[Answer]:
    """Return `answer_of_file` of each path in order, with a Spark task per file. `spark`: the session; its
    workers must find the files by the same paths, and the package.
    """
    return list(_mapped(spark, paths, settings, connection).collect())


def table(
    spark: SparkSession, paths: Sequence[str], settings: Sequence[Settings], connection: int | None = None
) -> DataFrame:
    """Return one table of all recordings, links and settings, with the columns of
    `tools.replay.many.COLUMNS`.

    It is evaluated lazily, and again at each use: write it, or cache it. Arguments are as in `answers`.
    """
    rows = _mapped(spark, paths, settings, connection).flatMap(_tuples)
    return spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))


def _mapped(
    spark: SparkSession, paths: Sequence[str], settings: Sequence[Settings], connection: int | None
) -> Any:
    look = partial(answer_of_file, settings=list(settings), connection=connection)
    return spark.sparkContext.parallelize(list(paths), max(1, len(paths))).map(look)


def _tuples(one: Answer) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table_rows(one)]
