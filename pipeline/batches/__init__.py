"""Run batch jobs: read rows, score them in this process or on a Ray cluster."""
