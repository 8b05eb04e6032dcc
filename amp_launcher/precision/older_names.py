"""The calls of `Precision` before 0.2, each answered with what took its place."""

from __future__ import annotations

from amp_launcher.precision.gone import Gone


class OlderNames:
    from_env = Gone('precision = Precision("o2"); the launcher\'s request wins where there is one')
    of = Gone('precision = Precision("o2", loss_scale="auto", device=device)')
    apply = Gone('precision = Precision("o2", device=device)')
    cast = Gone("model = precision.prepare(model)")
    optimizer = Gone("model, optimizer = precision.prepare(model, optimizer)")
    forward = Gone("`with precision:`")
    input = Gone("model(inputs): a prepared model casts what it takes")
    output = Gone("model(inputs): what a prepared model gives is float32")
    update = Gone("nothing: precision.step(optimizer) does it")
