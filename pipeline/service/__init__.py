"""The rerank service: wire formats, queue, worker threads, limits."""
