"""Self-tuning on real servers: workloads, runs, and the page docs/tuning-results.md."""
