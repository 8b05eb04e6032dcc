"""Hydra's multirun through the launcher: `python app.py -m hydra/launcher=amp_slurm lr=0.1,0.01`."""
