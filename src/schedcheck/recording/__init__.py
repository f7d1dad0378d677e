"""Traces from the outside world: recording a running scheduler, and judging what was recorded.

``checking`` judges, ``formats`` and ``dumps`` read, ``unpacking`` takes compressed files apart;
``writing`` writes files in turn, ``systems`` records what speaks our protocol, and ``vllm`` vLLM's
own Scheduler.
"""
