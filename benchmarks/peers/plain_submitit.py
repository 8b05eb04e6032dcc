"""The smallest submission with submitit, held in the queue."""

import sys

import submitit

executor = submitit.SlurmExecutor(folder=".submitit")
executor.update_parameters(time=5, job_name=sys.argv[1], additional_parameters={"hold": True})
executor.submit(print)
