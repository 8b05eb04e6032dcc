"""torch.compile, torch.jit and what traces: no more graph breaks or recompilations than alone."""


@guest(o0="proved", o1="proved")
def a_compiled_module():
    import torch._dynamo.utils

    compiled = torch.compile(net, backend="aot_eager")
    losses = train(4, lambda: F.mse_loss(compiled(inputs), targets))
    with torch.no_grad(), by_hand():
        evaluated = compiled(inputs)
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break")}
    frames = dict(torch._dynamo.utils.counters["frames"])


@guest(o0="proved", o1="proved")
def a_module_that_compiles_itself():
    import torch._dynamo.utils

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net

        def forward(self, inputs):
            return self.layers(inputs)

    model = Model()
    model.compile(backend="aot_eager", fullgraph=True)
    losses = train(4, lambda: F.mse_loss(model(inputs), targets))
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}


@guest(o0="proved", o1="proved")
def a_compiled_function_that_holds_the_model():
    import torch._dynamo.utils

    def written(inputs, targets):
        return F.mse_loss(net(inputs), targets)

    compiled = torch.compile(written, backend="aot_eager", fullgraph=True)
    losses = train(4, lambda: compiled(inputs, targets))
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}


@guest(o0="proved", o1="proved")
def a_compiled_step_with_breaks():
    import torch._dynamo.utils

    class Trainer:
        def __init__(self):
            self.model = net

        @torch.compile(backend="aot_eager")
        def loss_of(self, batch):
            hidden = self.model[1](self.model[0](batch))
            torch._dynamo.graph_break()
            return F.mse_loss(self.model[2](hidden), targets)

    trainer = Trainer()
    losses = train(4, lambda: trainer.loss_of(inputs))
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}


@guest(o0="proved", o1="proved")
def compiled_functions_without_a_model():
    import torch._dynamo.utils

    @torch.compile(backend="aot_eager")
    def orthogonal(matrix):
        for _ in range(2):
            matrix = 1.5 * matrix - 0.5 * matrix @ matrix.T @ matrix
        return matrix

    class Orthogonal(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            weight = net[0].weight
            weight.grad.copy_(orthogonal(weight.grad / weight.grad.norm()))
            super().step()

    optimizer = Orthogonal(net.parameters(), lr=0.1)
    start = orthogonal(square[:1])
    losses = train(4, lambda: F.mse_loss(net(inputs + start), targets), optimizer)
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}


@guest(o0="proved", o1="proved")
def a_compiled_part_of_a_module():
    import torch._dynamo.utils

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net_of()

        @torch.compile(backend="aot_eager", dynamic=False)
        def inner(self, inputs):
            return self.layers(inputs)

        def forward(self, inputs):
            return self.inner(inputs) + self.inner(inputs[:8]).mean()

    block = Block()
    losses = train(4, lambda: F.mse_loss(block(inputs), targets), torch.optim.SGD(block.parameters(), lr=0.1))
    counted = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "graph_break", "frames")}


@guest(o0="proved", o1="proved")
def a_scripted_and_a_traced_module():
    import warnings

    warnings.simplefilter("ignore")
    scripted = torch.jit.script(net)
    losses = train(4, lambda: F.mse_loss(scripted(inputs), targets))
    traced = torch.jit.trace(net_of(), inputs)
    optimizer = torch.optim.SGD(traced.parameters(), lr=0.1)
    losses += train(4, lambda: F.mse_loss(traced(inputs), targets), optimizer)


@guest(o0="proved", o1="proved")
def traced_before_its_first_step():
    import warnings

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        text = str(torch.jit.trace(net, inputs).inlined_graph)
        product = inputs.T @ inputs
    print(len(warned), product.dtype)
    losses = train(4)


@guest(o0="proved", o1="proved")
def traced_between_its_first_steps():
    losses = train(1)
    text = str(torch.jit.trace(net, inputs, check_trace=False).inlined_graph)
    losses += train(3)


@guest(o1="proved")
def exported_and_symbolically_traced():
    import torch.fx

    losses = train(3)
    text = str(torch.export.export(net, (inputs,)).graph)
    graph = torch.fx.symbolic_trace(net)
    losses += train(2, lambda: F.mse_loss(graph(inputs), targets))


@guest(o0="proved")
def a_compiled_step_of_an_optimizer():
    import contextlib
    import io
    import logging

    torch._logging.set_logs(all=logging.ERROR)  # its lines have the time in them

    @torch.compile(backend="eager")
    def step():
        sgd.step()

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in range(4):
            sgd.zero_grad()
            with by_hand():
                loss = F.mse_loss(net(inputs), targets)
            loss.backward()
            step()
    warned = said.getvalue()


@guest(o1="proved", imported="torch")
def the_compiler_is_imported_where_the_script_does():
    import sys

    losses = train()
    imported = "torch._dynamo" in sys.modules


@guest(o0="proved", o1="proved")
def compiled_objects_that_are_released():
    import dataclasses
    import gc
    import warnings
    import weakref

    @dataclasses.dataclass
    class Loss:
        model: nn.Module

        def __call__(self, inputs, targets):
            return F.mse_loss(self.model(inputs), targets)

    warnings.simplefilter("error", UserWarning)
    module = torch.compile(net, backend="eager")
    losses = train(4, lambda: F.mse_loss(module(inputs), targets))
    own = net_of()
    for compiled in (torch.compile(Loss(own), backend="eager"), torch.compile(Loss(own).__call__, backend="eager")):
        losses += train(3, lambda: compiled(inputs, targets), torch.optim.SGD(own.parameters(), lr=0.1))
    released = weakref.ref(own)
    del own, compiled
    losses += train(4)
    torch._dynamo.reset()
    gc.collect()
    print("released", released() is None)
