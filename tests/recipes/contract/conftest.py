"""All frameworks are in this one process, Paddle first."""

from tests.recipes.paddle_ import conftest

assert conftest
