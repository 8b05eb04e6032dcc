"""Autocast in every spelling."""


@guest(o0="proved", o1="proved", script="proved")
def none():
    losses = train(12)
    print("ended at", losses[-1])


@guest(o0="contradicted", o1="proved", script="proved")
def its_own_around_forward():
    def loss_of():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.mse_loss(net(inputs), targets)

    losses = train(12, loss_of)


@guest(o1="proved", script="proved")
def its_own_that_asks_for_its_cache():
    def loss_of():
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            return F.mse_loss(net(inputs), targets)

    losses = train(12, loss_of)


@guest(o0="proved", o1="contradicted")
def its_own_switched_off():
    def loss_of():
        with torch.autocast("cpu", enabled=False):
            return F.mse_loss(net(inputs), targets)

    losses = train(12, loss_of)


@guest(o0="proved", o1="proved")
def one_for_a_gpu_that_is_not_there():
    import warnings

    warnings.simplefilter("ignore")

    def loss_of():
        with torch.cuda.amp.autocast():
            return F.mse_loss(net(inputs), targets)

    losses = train(4, loss_of)


@guest(o1="proved", script="proved")
def deprecated_aliases_and_decorators():
    import warnings

    warnings.simplefilter("ignore")

    @torch.cpu.amp.autocast(dtype=torch.bfloat16)
    def forward():
        return net(inputs)

    losses = train(4, lambda: F.mse_loss(forward(), targets))


@guest(o1="proved")
def nested_contexts_of_its_own():
    def loss_of():
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            hidden = net[1](net[0](inputs))
            with torch.autocast("cpu", enabled=False):
                scale = (square[:1] @ square).mean()
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
                out = net[2](hidden)
        return F.mse_loss(out, targets) * scale.abs()

    losses = train(4, loss_of)


@guest(o1="proved")
def its_own_around_the_forward_only():
    def loss_of():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(inputs)
        return F.binary_cross_entropy_with_logits(out @ out.T, inputs @ inputs.T)

    losses = train(4, loss_of)


@guest(o1="proved")
def its_own_inside_that_outlives_backward():
    for _ in range(3):
        with by_hand():
            hidden = net[0](inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(net[2](hidden), targets)
            loss.backward()
        sgd.step()
        sgd.zero_grad()
        after = square[:1] @ square


@guest(o0="proved", o1="proved")
def products_before_the_model_and_after_backward():
    losses, products = [], []
    for _ in range(3):
        sgd.zero_grad()
        start = inputs[:1] @ square
        with by_hand():
            loss = F.mse_loss(net(inputs + start), targets)
            products.append(net[0].weight[:1] @ square)
        loss.backward()
        products.append(net[0].weight[:1].detach() @ square)
        sgd.step()
        losses.append(loss.item())


@guest(o1="proved")
def a_siamese_network_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 8)
            self.up.weight = self.down.weight

        def forward(self, inputs):
            return self.up(torch.relu(self.down(inputs)))

    tied = Tied()
    adam = torch.optim.Adam(tied.parameters(), lr=0.01)
    losses = train(4, lambda: (tied(inputs) - tied(inputs.flip(0))).square().mean() + tied(inputs).mean(), adam)


@guest(o1="proved", words=["proof.share=0.7"])
def custom_functions():
    seen = []

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, left, right):
            ctx.save_for_backward(left, right)
            return left @ right

        @staticmethod
        def backward(ctx, gradient):
            left, right = ctx.saved_tensors
            result = gradient.float() @ right.float().T, left.float().T @ gradient.float()
            seen.extend(part.dtype for part in result)
            return result

    class Custom(Plain):
        forward = staticmethod(torch.amp.custom_fwd(Plain.forward, device_type="cpu", cast_inputs=torch.bfloat16))
        backward = staticmethod(
            torch.amp.custom_bwd(lambda ctx, gradient: Plain.backward(ctx, gradient), device_type="cpu")
        )

    weight = torch.randn(1, 8, requires_grad=True)
    both = torch.optim.SGD([*net.parameters(), weight], lr=0.05)
    losses = train(3, lambda: F.mse_loss(Plain.apply(net(inputs), weight).mean(1, True), targets), both)
    losses += train(3, lambda: Plain.apply(net(inputs), weight).float().square().mean(), both)


@guest(o1="proved", o0="proved")
def evaluation_between_steps():
    import copy

    average, results = copy.deepcopy(net), []
    for _ in range(3):
        train(1)
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters()):
                mean.lerp_(weight, 0.5)
            raw = [weight.clone() for weight in net.parameters()]
            with by_hand():
                results.append(F.mse_loss(net(inputs), targets).item())
            for weight, mean in zip(net.parameters(), average.parameters()):
                weight.data.copy_(mean)
            with by_hand():
                results.append(F.mse_loss(net(inputs), targets).item())
            for weight, kept in zip(net.parameters(), raw):
                weight.copy_(kept)
        results.append((inputs[:1] @ square).sum().item())
        with torch.inference_mode(), by_hand():
            results.append(net(inputs).sum().item())
        results.append((inputs[:1] @ square).sum().item())


@guest(o1="proved")
def evaluation_without_no_grad():
    results, other = [], {name: value * 0.5 for name, value in net.state_dict().items()}
    for _ in range(3):
        train(1)
        net.eval()
        kept = {name: value.clone() for name, value in net.state_dict().items()}
        for state_dict in (other, kept):
            with by_hand():
                results.append(F.mse_loss(net(inputs), targets).item())
            net.load_state_dict(state_dict)
        net.train()


@guest(o1="nothing to prove")
def an_evolution_strategy():
    scores = []
    for _ in range(6):
        for weight in net.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
        with by_hand():
            scores.append(F.mse_loss(net(inputs), targets).item())


@guest(o1="proved")
def an_evaluation_inside_a_step():
    results = []

    def loss_of():
        out = net(inputs)
        with torch.no_grad():
            results.append(net(targets.expand(-1, 8)).sum().item())
        return F.mse_loss(out, targets) + net(inputs.flip(1)).mean()

    losses = train(4, loss_of)


@guest(o0="proved", o1="proved")
def an_exception_between_forward_and_backward():
    for attempt in range(5):
        sgd.zero_grad()
        product = inputs + inputs[:1] @ square
        try:
            with by_hand():
                out = net(product)
                if attempt % 2:
                    net(inputs[:, :3])
                loss = F.mse_loss(out, targets)
        except RuntimeError:
            continue
        loss.backward()
        sgd.step()


@guest(o1="proved")
def values_for_numpy():
    with torch.no_grad(), by_hand():
        out = net(inputs)
    outside = isinstance(by_hand(), torch.autocast)
    values = numpy.asarray(out.float() if outside else out), (out.float() if outside else out).numpy()
    del outside
    losses = train(3)


@guest(o1="proved")
def steps_in_threads():
    import threading

    results = {}

    def work(number):
        own = net_of()
        with torch.no_grad():
            for weight in own.parameters():
                weight.fill_(0.01 * number)
        results[number] = train(3, lambda: F.mse_loss(own(inputs), targets), torch.optim.SGD(own.parameters(), lr=0.1))

    train(3)
    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
        thread.join()


@guest(o1="proved")
def a_generator_of_batches_that_calls_a_model():
    teacher = net_of().requires_grad_(False)

    def batches():
        for number in range(4):
            yield inputs + number, (inputs[:1] @ square).mean() + targets

    losses = []
    for batch, target in batches():
        sgd.zero_grad()
        with by_hand():
            with torch.no_grad():
                wanted = teacher(batch)
            loss = F.mse_loss(net(batch), wanted) + F.mse_loss(net(batch), target)
        loss.backward()
        sgd.step()
        losses.append(loss.item())


@guest(o0="proved", script="proved")
def a_grad_scaler():
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for _ in range(4):
        sgd.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        losses.append(loss.item())
