"""The smallest useful Hydra application: it composes the configuration tree in the folder CONF and prints it."""

import os

import hydra
from omegaconf import OmegaConf


@hydra.main(version_base="1.3", config_path=os.environ["CONF"], config_name="config")
def main(config):
    print(OmegaConf.to_yaml(config))


main()
