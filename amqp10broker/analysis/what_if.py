"""`replay.many` over files of recorded frames: in this process, or a file a task by Spark.

The same function looks at each file, here and in Spark's Python workers; no Spark is needed to import this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.analysis.errors import NothingToAnalyse
from amqp10broker.frames.records import NoFrames, read_lines
from amqp10broker.replay.forecast import Settings
from amqp10broker.replay.many import COLUMNS, Answer, answer, table_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUFFIX: Final = ".jsonl"
"""Of the files of ``serve --record-frames``."""


def files_of(names: Sequence[str]) -> list[str]:
    """The files that are meant: a folder stands for its ``*.jsonl``, in order; each comes once.

    Raises:
        NothingToAnalyse: a folder has none.
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
    """What is said of one file; one that is none, or cannot be read, is an answer with a problem.

    Args:
        path: of the file.
        settings: what is asked about.
        connection: this one alone; None for all.
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
    """`answer_of_file` of each, a file a task, in the order of the paths.

    Args:
        spark: the session; its workers must find the files by the same paths, and the package.
        paths, settings, connection: as there.
    """
    return list(_mapped(spark, paths, settings, connection).collect())


def table(
    spark: SparkSession, paths: Sequence[str], settings: Sequence[Settings], connection: int | None = None
) -> DataFrame:
    """One table of all recordings, links and settings, with the columns of `replay.many.COLUMNS`.

    Nothing is computed before it is asked for, and again each time that it is: write it, or cache it.

    Args:
        spark, paths, settings, connection: as `answers`.
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
