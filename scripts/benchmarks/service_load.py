"""Clients of a rerank service, as a process of their own: its work must not be the service's.

    python service_load.py PORT BODIES CLIENTS SECONDS

Each line of the file BODIES is the body of a request to /rerank. Each client keeps one connection
and sends one request after the other, the bodies in turn. Prints JSON: seconds in all, the
milliseconds of each answer by its status, and the documents that were scored.
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from itertools import count
from pathlib import Path


async def client(
    port: int, bodies: list[bytes], numbers: "count[int]", end: float, found: dict[int, list[float]]
) -> None:
    """Send requests until the time ``end``; at least one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        body = bodies[next(numbers) % len(bodies)]
        head = f"POST /rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        started = time.perf_counter()
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        headers = answer.lower().split(b"\r\n")
        (length,) = (line[15:] for line in headers if line.startswith(b"content-length:"))
        await reader.readexactly(int(length))
        found[status].append(1000 * (time.perf_counter() - started))
        if time.perf_counter() > end:
            break
    writer.close()


async def main(port: int, path: Path, clients: int, seconds: float) -> None:
    """Run all clients at once."""
    bodies = path.read_bytes().splitlines()
    documents = len(json.loads(bodies[0])["texts"])
    found: dict[int, list[float]] = defaultdict(list)
    numbers, started = count(), time.perf_counter()
    end = started + seconds
    await asyncio.gather(*(client(port, bodies, numbers, end, found) for _ in range(clients)))
    seconds = time.perf_counter() - started
    scored = documents * len(found[200])
    print(json.dumps({"seconds": seconds, "milliseconds": found, "documents": scored}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
