"""The rerank service: its wire formats, queue, worker processes and limits."""
