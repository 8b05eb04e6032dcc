"""A Hydra application whose job does nothing, for what its multirun costs by itself."""

import os

import hydra


@hydra.main(version_base="1.3", config_path=os.environ["CONF"], config_name="config")
def main(config):
    pass


main()
