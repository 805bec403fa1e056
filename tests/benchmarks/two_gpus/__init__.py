"""What ``two_gpu_autograd.py`` measures, and how."""
