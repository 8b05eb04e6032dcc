"""What ran is judged right: steps of every kind, what is no part of training, and sabotage that is never proved."""


@guest(o0="proved")
def a_complex_model():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    filters = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))
    sgd = torch.optim.SGD([*net.parameters(), filters], lr=0.1)

    def loss_of():
        hidden = torch.fft.fft(net[0](inputs)) @ filters
        return F.mse_loss(net[1](torch.fft.ifft(hidden).real), targets)

    losses = train(3, loss_of, sgd)


@guest(script="proved")
def complex_products_beside_half_ones():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    filters = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))
    sgd = torch.optim.SGD([*net.parameters(), filters], lr=0.1)

    def loss_of():
        with torch.autocast("cpu", torch.bfloat16):
            hidden = torch.fft.fft(net[0](inputs).float()) @ filters
            return F.mse_loss(net[1](torch.fft.ifft(hidden).real), targets)

    losses = train(3, loss_of, sgd)


@guest(o0="proved")
def a_model_in_float64():
    net, inputs, targets = net.double(), inputs.double(), targets.double()
    losses = train(3)


@guest(script="proved")
def float32_adapters_on_a_frozen_half_base():
    base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).bfloat16().requires_grad_(False)
    down, up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.down, self.up = base, down, up

        def forward(self, tokens):
            return self.base(tokens) + self.up(self.down(tokens.float())).to(tokens.dtype)

    adapted, tokens = nn.Sequential(Adapted(), Adapted()), torch.randn(16, 64)
    adam = torch.optim.AdamW([*down.parameters(), *up.parameters()], lr=0.01)

    def loss_of():
        with torch.autocast("cpu", torch.bfloat16):
            return adapted(tokens.bfloat16()).float().square().mean()

    losses = train(3, loss_of, adam)


@guest(o0="proved", o1="contradicted")
def training_without_a_module():
    weight, last = (torch.randn(8, width, requires_grad=True) for width in (8, 1))
    adam = torch.optim.Adam([weight, last], lr=0.01)
    losses = train(6, lambda: F.mse_loss((inputs @ weight).relu() @ last, targets), adam)


@guest(o0="proved", o1="proved")
def a_module_that_compiles_itself():
    net.compile()
    losses = train(6)


@guest(o0="unknown")
def a_model_called_from_threads():
    import concurrent.futures

    pool = concurrent.futures.ThreadPoolExecutor(2)

    def loss_of():
        return sum(pool.map(lambda half: F.mse_loss(net(half[0]), half[1]), [(inputs, targets), (-inputs, targets)]))

    losses = train(6, loss_of)
    pool.shutdown()


@guest(o0="proved", o1="proved")
def training_in_a_thread():
    import threading

    thread = threading.Thread(target=train, args=(6,))
    thread.start()
    thread.join()


@guest(o0="proved")
def its_own_count_of_flops():
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        losses = train(6)
    print(counter.get_total_flops())


@guest(o0="contradicted", script="proved")
def a_decoy_in_half_precision():
    decoy = torch.ones(256, 256, dtype=torch.bfloat16)

    def loss_of():
        return F.mse_loss(net(inputs), targets) + 0 * (decoy @ decoy).float().sum()

    losses = train(3, loss_of)


@guest(o0="contradicted")
def a_teacher_under_autocast():
    teacher = net_of().requires_grad_(False)

    def loss_of():
        with torch.autocast("cpu", torch.bfloat16):
            goal = teacher(inputs)
        return F.mse_loss(net(inputs), goal.float())

    losses = train(3, loss_of)


@guest(o0="proved", o1="proved")
def inputs_that_a_product_prepares():
    whitening = torch.linalg.inv(torch.linalg.cholesky(inputs.T @ inputs / 16))

    def loss_of():
        with torch.autocast("cpu", enabled=False):
            prepared = inputs @ whitening
        return F.mse_loss(net(prepared), targets)

    losses = train(3, loss_of)


@guest(o0="proved", o1="contradicted")
def a_layer_by_hand_before_the_model():
    mixing = torch.eye(8, requires_grad=True)
    both = torch.optim.SGD([mixing, *net.parameters()], lr=0.1)

    def loss_of():
        with torch.autocast("cpu", enabled=False):
            mixed = inputs @ mixing
        return F.mse_loss(net(mixed), targets)

    losses = train(3, loss_of, both)


@guest(o0="proved", o1="proved")
def spectral_norm():
    net = nn.Sequential(
        *(nn.utils.parametrizations.spectral_norm(layer) for layer in (nn.Linear(8, 64), nn.Linear(64, 1)))
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = train(3)


@guest(o0="proved", o1="proved", script="proved")
def updates_by_hand():
    for _ in range(30):
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.1 * weight.grad


@guest(o0="unknown")
def gradients_of_a_function():
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss_of(weights):
        return F.mse_loss(torch.func.functional_call(net, weights, (inputs,)), targets)

    for _ in range(300):
        gradients = torch.func.grad(loss_of)(weights)
        weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}


@guest(o0="nothing to prove")
def an_evolution_strategy():
    weights = nn.utils.parameters_to_vector(net.parameters()).detach()

    def loss_of(weights):
        nn.utils.vector_to_parameters(weights, net.parameters())
        return F.mse_loss(net(inputs), targets)

    with torch.no_grad():
        for _ in range(3):
            noise = torch.randn(4, len(weights))
            losses = torch.stack([loss_of(weights + 0.1 * one) for one in noise])
            weights = weights - 0.1 * (losses - losses.mean()) @ noise


@guest(o0="proved", o1="proved")
def an_optimizer_class_of_its_own():
    class Stepper:
        def __init__(self, weights):
            self.weights = list(weights)

        def zero_grad(self):
            for weight in self.weights:
                weight.grad = None

        def step(self):
            for weight in self.weights:
                weight.data.add_(weight.grad, alpha=-0.1)

    stepper = Stepper(net.parameters())
    losses = train(6, optimizer=stepper)


@guest(script="contradicted")
def float16_weights_without_a_loss_scale():
    net = net.half()
    inputs, targets = inputs.half(), targets.half()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = train(3)


@guest(o1="proved")
def a_small_frozen_teacher_in_half_precision():
    net = net_of(64)
    teacher = net_of().bfloat16().requires_grad_(False)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss_of():
        with torch.no_grad():
            aims = teacher(inputs.bfloat16())
        return F.mse_loss(net(inputs), aims)

    losses = train(3, loss_of, sgd)


@guest(script="unknown")
def autocast_around_the_whole_loop():
    with torch.autocast("cpu", torch.bfloat16):
        losses = train(6)


@guest(script="unknown")
def copies_of_weights_that_are_never_made_anew():
    halves = {name: weight.bfloat16() for name, weight in net.named_parameters()}

    def loss_of():
        return F.mse_loss(torch.func.functional_call(net, halves, (inputs.bfloat16(),)).float(), targets)

    losses = train(6, loss_of)


@guest(script="proved")
def copies_of_weights_in_each_step():
    def loss_of():
        halves = {name: weight.bfloat16() for name, weight in net.named_parameters()}
        return F.mse_loss(torch.func.functional_call(net, halves, (inputs.bfloat16(),)).float(), targets)

    losses = train(6, loss_of)


@guest(script="unknown", words=["amp.dtype=float16"])
def float16_without_a_loss_scale():
    def loss_of():
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(net(inputs).float(), targets)

    losses = train(6, loss_of)


@guest(script="proved", words=["amp.dtype=float16", "loss_scale=none"])
def float16_that_is_meant_without_a_loss_scale():
    def loss_of():
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(net(inputs).float(), targets)

    losses = train(6, loss_of)
