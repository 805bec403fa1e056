"""What ``bench_checkpoint.py`` measures, and how."""
