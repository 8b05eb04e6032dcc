pytest_plugins = ["tests.testbed.plugin"]
