"""How loss scales move, by the rules of other frameworks, written anew: what ours are held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TorchRule:
    """Grow after a run of good steps, shrink at each bad one; Keras's LossScaleOptimizer does the same."""

    scale: float
    growth: float
    backoff: float
    growth_every: int
    good: int = 0

    def iterate(self, bad):
        if bad:
            self.scale, self.good = self.scale * self.backoff, 0
        elif self.good == self.growth_every - 1:
            self.scale, self.good = self.scale * self.growth, 0
        else:
            self.good += 1
        return self.scale


@dataclass
class PaddleRule:
    """Shrink after a run of bad steps; a bad step ends the run of good ones, a good step the run of bad ones."""

    scale: float
    growth: float
    backoff: float
    growth_every: int
    backoff_every: int
    good: int = 0
    bad: int = 0

    def iterate(self, bad):
        if bad:
            self.good = 0
            self.bad += 1
            if self.bad == self.backoff_every:
                self.scale, self.bad = self.scale * self.backoff, 0
        else:
            self.bad = 0
            self.good += 1
            if self.good == self.growth_every:
                self.scale, self.good = self.scale * self.growth, 0
        return self.scale
