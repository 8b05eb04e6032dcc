.PHONY: testbed testbed-down

testbed:  ## bring up a real Slurm, sshd, Docker engine and Apptainer on this machine (as root)
	@python3 -m tests.testbed up

testbed-down:  ## end it; what was made and installed stays
	@python3 -m tests.testbed down
