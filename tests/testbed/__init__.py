"""A real cluster on one machine: Slurm, accounting, SSH, Docker and Apptainer, for the tests that need them.

`python3 -m tests.testbed up` brings it up, `down` ends it, `status` says what runs. Everything here is standard
library only, because it has to run before any virtual environment is there.
"""
