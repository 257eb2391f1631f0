"""Write a stream into Parquet files with Spark. Each run adds the new messages, each message once.

    python examples/spark_stream.py [URL] [STREAM] [FOLDER]

Run it again after more messages were published, or after it was killed: FOLDER/checkpoint stores the
position in the stream, and FOLDER/rows/_spark_metadata lists the files that belong to the result.

To make a stream for it: `amqp10broker queue declare orders --type stream`, then
`amqp10broker publish --queue orders --count 100000 hello`.
"""

import os
import sys
import time

from amqp10broker.errors import BrokerError
from amqp10broker.spark.session import local_session, register

default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
stream = sys.argv[2] if len(sys.argv) > 2 else "orders"
folder = sys.argv[3] if len(sys.argv) > 3 else "orders"

try:
    spark = local_session("spark_stream")
except BrokerError as error:  # Java or a package is missing
    sys.exit(str(error))
spark.sparkContext.setLogLevel("OFF")  # errors are printed below

register(spark)
rows = spark.readStream.format("amqp10").options(url=url, stream=stream, maxOffsetsPerTrigger=100_000).load()
files = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query = files.trigger(availableNow=True).start(f"{folder}/rows")  # up to the stream's present end

started = time.monotonic()
batch = -1
try:
    while not query.awaitTermination(0.5):
        progress = query.lastProgress
        if progress and progress["batchId"] != batch:
            batch = progress["batchId"]
            print(f"batch {batch}: {progress['numInputRows']} rows", flush=True)
except KeyboardInterrupt:
    query.stop()
    sys.exit(130)
except Exception as error:
    # Spark's message contains stack traces. The last line from this package has the cause and remedy.
    ours = [line for line in str(error).splitlines() if line.startswith("amqp10broker.")]
    sys.exit(ours[-1] if ours else str(error))

count = sum(progress["numInputRows"] for progress in query.recentProgress)
print(f"{count} rows read in {time.monotonic() - started:.1f} s")
result = spark.read.parquet(f"{folder}/rows")
print(f"{result.count()} rows in {folder}/rows, {result.select('offset').distinct().count()} different")
spark.stop()
