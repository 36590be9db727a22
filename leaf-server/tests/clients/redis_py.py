import sys

import redis

port, increments, flakes = map(int, sys.argv[1:])
client = redis.Redis(port=port, decode_responses=True)
for _ in range(increments // 100):
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.incr("leaf-segment-test")
    print(*pipeline.execute(), sep="\n")
for _ in range(flakes // 100):
    print(*client.execute_command("SNOWFLAKE", "COUNT", 100), sep="\n")
