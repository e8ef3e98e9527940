"""Clients of a rerank service, in a process of their own: their work must not be the service's.

    python service_load.py PORT BODIES CLIENTS SECONDS

Each line of the file BODIES is the body of a request to /rerank. Each client keeps one connection
and sends one request after the other, the bodies in turn. Prints JSON: seconds in all, the
milliseconds of each response by its status, the number of scored documents, and of responses whose
scores are not those of the first response to the same body.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from itertools import cycle
from pathlib import Path

TOLERANCE = 1e-4  # Of a score: documents that are scored together differ

times: dict[int, list[float]] = defaultdict(list)
first: dict[bytes, dict[int, float]] = {}
wrong = 0


def check(body: bytes, content: bytes) -> None:
    """Compare scores with those of the first response to the same body."""
    global wrong
    scores = {rank["index"]: rank["score"] for rank in json.loads(content)}
    expected = first.setdefault(body, scores)
    is_right = scores.keys() == expected.keys()
    wrong += not (is_right and all(abs(scores[n] - expected[n]) < TOLERANCE for n in scores))


async def client(port: int, bodies: "cycle[bytes]", end: float) -> None:
    """Send requests until the time ``end``; at least one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        body = next(bodies)
        head = f"POST /rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        started = time.perf_counter()
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        response = await reader.readuntil(b"\r\n\r\n")
        headers = response.lower().split(b"\r\n")
        (length,) = (line[15:] for line in headers if line.startswith(b"content-length:"))
        content, status = await reader.readexactly(int(length)), int(response[9:12])
        times[status].append(1000 * (time.perf_counter() - started))
        if status == 200:
            check(body, content)
        if time.perf_counter() > end:
            break
    writer.close()


async def main(port: int, path: Path, clients: int, seconds: float) -> None:
    """Run all clients at once."""
    lines = path.read_bytes().splitlines()
    bodies, started = cycle(lines), time.perf_counter()
    await asyncio.gather(*(client(port, bodies, started + seconds) for _ in range(clients)))
    seconds = time.perf_counter() - started
    scored = len(json.loads(lines[0])["texts"]) * len(times[200])
    made = {"seconds": seconds, "milliseconds": times, "documents": scored, "wrong": wrong}
    print(json.dumps(made))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
