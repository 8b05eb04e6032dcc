"""Trackers: what a run's folder holds, sent to TensorBoard, MLflow or Weights & Biases from outside the job.

content: a run's folder -> settings, tags, verdict and scalars by step
sending: what is new of a run -> a tracker, and the record of what was sent
tensorboard_events, mlflow_runs, wandb_runs: one tracker each, imported only where it is asked for
"""
