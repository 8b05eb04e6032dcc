"""Trackers: what a run's folder holds, sent to TensorBoard, MLflow or Weights & Biases from outside the job."""
