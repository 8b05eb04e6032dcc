"""What the observer meets that is the script's own: profilers, modes, operators, precision that changes late."""


@guest(o0="proved", o1="proved")
def a_function_mode_that_counts():
    class Counting(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    with Counting() as mode:
        losses = train(40)
    print("calls", mode.calls)


@guest(o0="proved", o1="proved", environ={"KINETO_LOG_LEVEL": "99"})
def a_profiler_around_all_steps():
    with torch.profiler.profile() as profiler:
        losses = train(12)
    print(
        "steps", sum(average.count for average in profiler.key_averages() if average.key == "Optimizer.step#SGD.step")
    )


@guest(o0="proved", o1="proved", environ={"KINETO_LOG_LEVEL": "99"})
def a_profiler_of_each_forward():
    def loss_of():
        with torch.profiler.profile() as profiler:
            loss = F.mse_loss(net(inputs), targets)
        assert any(average.key == "aten::addmm" for average in profiler.key_averages())
        return loss

    losses = train(4, loss_of)


@guest(o0="proved", o1="proved", environ={"KINETO_LOG_LEVEL": "99"})
def a_profiler_that_warms_up_while_a_step_is_observed():
    rounds = []

    def ready(profiler):
        rounds.append(sum(average.count for average in profiler.key_averages() if "Optimizer.step" in average.key))

    cycle = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=3)
    with torch.profiler.profile(schedule=cycle, on_trace_ready=ready, acc_events=True) as profiler:
        losses = []
        for _ in range(12):
            losses += train(1)
            profiler.step()
    print("steps", rounds)


@guest(o0="proved", o1="proved")
def flops_of_each_forward():
    from torch.utils.flop_counter import FlopCounterMode

    counts = []

    def loss_of():
        with FlopCounterMode(display=False) as counter:
            loss = F.mse_loss(net(inputs), targets)
        counts.append(counter.get_total_flops())
        return loss

    losses = train(12, loss_of)
    print("FLOPs", counts)


@guest(o0="proved", o1="proved")
def sparse_products():
    graph = torch.eye(16).to_sparse()

    def loss_of():
        with torch.autocast("cpu", enabled=False):
            mixed = torch.sparse.mm(graph, inputs)
        return F.mse_loss(net(mixed), targets)

    losses = train(4, loss_of)


@guest(o0="unknown", o1="unknown")
def an_operator_of_its_own():
    from torch.library import custom_op

    @custom_op("mylib::my_gelu", mutates_args=())
    def my_gelu(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    my_gelu.register_autograd(lambda context, gradient: gradient.clone())
    losses = train(4, lambda: F.mse_loss(net[2](my_gelu(net[0](inputs))), targets))


@guest(o0="unknown", o1="unknown")
def an_operator_that_multiplies_matrices_given_as_vectors():
    from torch.library import custom_op

    @custom_op("mylib::flat_product", mutates_args=())
    def flat_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy((x.view(-1, 8).numpy() @ y.view(8, 8).numpy()).reshape(-1))

    flat_product.register_autograd(lambda context, gradient: (gradient.clone(), None))
    losses = train(4, lambda: F.mse_loss(net(flat_product(inputs.view(-1), square.view(-1)).view(-1, 8)), targets))


@guest(o0="proved", o1="proved", words=["proof.ignore=[mylib.*]"])
def an_operator_of_its_own_that_is_ignored():
    from torch.library import custom_op

    @custom_op("mylib::my_gelu", mutates_args=())
    def my_gelu(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    my_gelu.register_autograd(lambda context, gradient: gradient.clone())
    losses = train(4, lambda: F.mse_loss(net[2](my_gelu(net[0](inputs))), targets))


@guest(o0="proved", o1="proved")
def an_operator_of_its_own_that_is_tagged_as_pointwise():
    from torch.library import custom_op

    @custom_op("mylib::my_relu", mutates_args=(), tags=(torch.Tag.pointwise,))
    def my_relu(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)

    my_relu.register_autograd(lambda context, gradient: gradient.clone())
    losses = train(4, lambda: F.mse_loss(net[2](my_relu(net[0](inputs))), targets))


@guest(o1="contradicted", script="contradicted")
def float32_from_step_40_on():
    for step in range(120):
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=step < 40):
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        sgd.step()


@guest(o0="proved", script="proved")
def an_end_by_os_exit():
    import atexit
    import os

    losses = train(12)
    print("ended at", losses[-1], flush=True)
    atexit._run_exitfuncs()
    os._exit(0)


@guest(o0="proved", script="proved")
def an_end_by_os_exit_after_two_steps():
    import atexit
    import os

    losses = train(2)
    atexit._run_exitfuncs()
    os._exit(0)


@guest(o0="proved", script="proved")
def another_program_in_its_place():
    import atexit
    import os

    losses = train(12)
    atexit._run_exitfuncs()
    os.execlp("true", "true")


@guest(o0="unknown", script="unknown")
def python_in_its_place():
    import atexit
    import os
    import sys

    losses = train(12)
    atexit._run_exitfuncs()
    os.execv(sys.executable, [sys.executable, "-c", "print('again')"])


@guest(o0="proved", o1="proved")
def products_that_are_added_in_place():
    class Linear(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
        def forward(ctx, inputs, weight, bias):
            ctx.save_for_backward(inputs, weight)
            return torch.addmm(bias, inputs, weight.t())

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, gradient):
            inputs, weight = ctx.saved_tensors
            of_weight = torch.zeros_like(weight).addmm_(gradient.t(), inputs)
            of_inputs = torch.zeros_like(inputs)[None].baddbmm_(gradient[None], weight[None])[0]
            return of_inputs, of_weight, gradient.sum(0)

    losses = train(loss_of=lambda: F.mse_loss(net[2](Linear.apply(net[0](inputs), square, square[0])), targets))


@guest(o0="proved", o1=None, script=None)
def products_in_kernels_of_other_operations():
    bilinear = nn.Bilinear(8, 8, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *bilinear.parameters()], lr=0.01)

    def loss_of():
        output = net(inputs) + bilinear(inputs, inputs)
        grid = F.affine_grid(output[:12].view(2, 2, 3), [2, 1, 4, 4])
        inverse = torch.linalg.pinv(bilinear.weight[0].float())
        return F.mse_loss(output, targets) + grid.float().square().mean() + 1e-3 * inverse.square().mean()

    losses = train(loss_of=loss_of, optimizer=optimizer)


@guest(o0="proved", o1="proved")
def a_tensor_class_of_its_own():
    class Named(torch.Tensor):
        def __new__(cls, data, label):
            return super().__new__(cls, data)

        def __init__(self, data, label):
            self.label = label

    def loss_of():
        return F.mse_loss(net(Named(inputs, "inputs")), Named(targets, "targets")).as_subclass(torch.Tensor)

    losses = train(3, loss_of)
    named = Named(net[0].weight, "weight")
    kind, label, same = type(named).__name__, named.label, named.data_ptr() == net[0].weight.data_ptr()
