"""Put Qpid JMS, and a compiler for Java, into the virtual environment whose Python runs this.

By Ivy, which comes with PySpark and knows where libraries of Java are, on the Java that Spark runs on: so
tests with programs for JMS need neither Maven nor a JDK. What is installed stands in tests/jms/ivy.xml; see
tests/support/jms.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from amqp10broker.errors import BrokerError
from amqp10broker.spark.session import java_home

WANTED: Final = Path(__file__).parents[1] / "tests" / "jms" / "ivy.xml"
_WAIT_S: Final = 600.0


def main() -> int:
    """Install them, or say in one line why not; the exit code says which."""
    target = Path(sys.prefix) / "jms"
    version = sha256(WANTED.read_bytes()).hexdigest()
    if (target / "version").is_file() and (target / "version").read_text() == version:
        return 0
    shutil.rmtree(target, ignore_errors=True)
    try:
        fetch(target)
    except (OSError, BrokerError, subprocess.SubprocessError) as error:
        print(f"no Qpid JMS for the tests: {error}; Ivy needs a repository of Maven's: check the network")
        return 1
    (target / "version").write_text(version)
    return 0


def fetch(target: Path) -> None:
    """Have Ivy put the files of each configuration into a folder of its name.

    Args:
        target: where to.

    Raises:
        OSError: there is no PySpark, or Ivy has failed.
        JavaNotFound: there is no Java.
        subprocess.SubprocessError: Ivy does not end.
    """
    spark = find_spec("pyspark")
    ivy = None if spark is None or spark.origin is None else Path(spark.origin).parent / "jars"
    found = [] if ivy is None else list(ivy.glob("ivy-*.jar"))
    if not found:
        raise OSError("there is no Ivy without PySpark")
    done = subprocess.run(
        [
            *(java_home() / "bin" / "java", "-jar", found[0], "-warn"),
            *("-ivy", WANTED, "-retrieve", target / "[conf]" / "[artifact]-[revision].[ext]"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
    )
    if done.returncode:
        raise OSError(f"Ivy says {done.stdout.strip()[-500:]} {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
