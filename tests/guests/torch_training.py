"""Ways to train: optimizers, gradients of gradients, checkpointing, averages."""


@guest(o0="proved", o1="proved")
def shampoo():
    dtypes = set()

    class Shampoo(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.05})

        @torch.no_grad()
        def step(self, closure=None):
            for weight in self.param_groups[0]["params"]:
                gradient = weight.grad.reshape(len(weight), -1)
                product = gradient @ gradient.T + torch.eye(len(gradient))
                dtypes.add(product.dtype)
                values, vectors = torch.linalg.eigh(product)
                root = vectors @ torch.diag(values.clamp(min=1e-3) ** -0.5) @ vectors.T
                weight.sub_((root @ gradient).reshape(weight.shape), alpha=self.param_groups[0]["lr"])

    losses = train(4, optimizer=Shampoo(net.parameters()))
    found = sorted(map(str, dtypes))


@guest(o0="proved", o1="proved")
def muon():
    optimizer = torch.optim.Muon([net[0].weight, net[2].weight], lr=0.01)
    losses = train(4, optimizer=optimizer)


@guest(o0="proved", o1="proved")
def lbfgs():
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]


@guest(o0="proved", o1="proved")
def sharpness_aware():
    losses = []
    for _ in range(3):
        sgd.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        with torch.no_grad():
            moved = [0.05 * weight.grad / (weight.grad.norm() + 1e-12) for weight in net.parameters()]
            for weight, move in zip(net.parameters(), moved):
                weight.add_(move)
        sgd.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        with torch.no_grad():
            for weight, move in zip(net.parameters(), moved):
                weight.sub_(move)
        sgd.step()
        losses.append(loss.item())


@guest(o0="proved", o1="proved")
def a_gan():
    critic = nn.Linear(1, 1)
    first, second = torch.optim.Adam(net.parameters()), torch.optim.Adam(critic.parameters())
    losses = []
    for _ in range(3):
        second.zero_grad()
        with by_hand():
            made = net(inputs)
            loss = critic(made.detach()).mean() - critic(targets).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        with by_hand():
            loss = -critic(made if not losses else net(inputs)).mean()
        loss.backward()
        first.step()
        losses.append(loss.item())


@guest(o0="proved", o1="proved")
def a_gradient_penalty():
    losses = []
    for _ in range(3):
        sgd.zero_grad()
        batch = inputs.clone().requires_grad_()
        with by_hand():
            out = net(batch)
        (gradient,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
        with by_hand():
            loss = F.softplus(out).mean() + ((gradient.norm(dim=1) - 1) ** 2).mean() + (gradient @ square).mean()
        loss.backward()
        sgd.step()
        losses.append(loss.item())


@guest(o1="proved")
def a_hessian_by_double_backward():
    traces = []
    for _ in range(3):
        sgd.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward(create_graph=True)
        flat = torch.cat([weight.grad.flatten() for weight in net.parameters()])
        weights = list(net.parameters())
        products = torch.autograd.grad(flat @ flat.detach(), weights, allow_unused=True)
        traces.append(sum(part.sum().item() for part in products if part is not None))
        sgd.step()


@guest(o1="proved")
def saliency_before_the_loss():
    losses = []
    for _ in range(3):
        sgd.zero_grad()
        batch = inputs.clone().requires_grad_()
        with by_hand():
            out = net(batch)
        (slope,) = torch.autograd.grad(out.sum(), batch, retain_graph=True)
        with by_hand():
            loss = F.binary_cross_entropy_with_logits(out, targets.sigmoid()) + slope.norm()
        loss.backward()
        sgd.step()
        losses.append(loss.item())


@guest(o0="unknown", o1="unknown")
def functional_gradients():
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss_of(weights):
        with by_hand():
            return F.mse_loss(torch.func.functional_call(net, weights, (inputs,)), targets)

    products = []
    for _ in range(3):
        gradients = torch.func.grad(loss_of)(weights)
        products.append(gradients["0.weight"] @ square)
        weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}


@guest(o1="proved")
def checkpoints_of_both_kinds():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        batch = inputs.clone().requires_grad_()
        losses = train(3, lambda: F.mse_loss(net[2](checkpoint(net[:2], batch, use_reentrant=reentrant)), targets))


@guest(o0="proved", o1="proved")
def a_checkpoint_of_the_whole_model():
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    losses = train(3, lambda: F.mse_loss(checkpoint(net, inputs, use_reentrant=False), targets))
    batch = inputs.clone().requires_grad_()
    losses += train(3, lambda: F.mse_loss(checkpoint_sequential(net, 2, batch, use_reentrant=False), targets))


@guest(o0="proved", o1="proved")
def averages_of_weights():
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    averages = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    results = []
    for _ in range(3):
        train(1, lambda: F.mse_loss(model(inputs), targets), optimizer)
        for average in averages:
            average.update_parameters(model)
    for average in averages:
        with by_hand():
            update_bn([inputs, inputs + 1], average)
        average.eval()
        with torch.no_grad(), by_hand():
            results.append(average(inputs).sum().item())


@guest(o0="proved", o1="proved")
def a_frozen_teacher():
    teacher = net_of(16).eval().requires_grad_(False)

    def loss_of():
        with torch.no_grad():
            wanted = teacher(inputs)
        return F.kl_div(F.log_softmax(net(inputs), 0), F.softmax(wanted, 0), reduction="sum")

    losses = train(4, loss_of)


@guest(o0="proved", o1="proved")
def adapters():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, inputs):
            return self.base(inputs) + self.up(self.down(inputs))

    net[0] = Adapted(net[0])
    optimizer = torch.optim.AdamW([weight for weight in net.parameters() if weight.requires_grad])
    losses = train(4, optimizer=optimizer)


@guest(o1="proved")
def accumulation_and_clipping():
    norms = []
    for _ in range(3):
        sgd.zero_grad()
        for part in (0, 8):
            with by_hand():
                loss = F.mse_loss(net(inputs[part : part + 8]), targets[part : part + 8]) / 2
            loss.backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1).item())
        sgd.step()


@guest(o1="proved")
def an_optimizer_step_in_backward():
    each = {weight: torch.optim.SGD([weight], lr=0.1) for weight in net.parameters()}

    def stepped(weight):
        each[weight].step()
        each[weight].zero_grad()

    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(stepped)
    losses = []
    for _ in range(4):
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        losses.append(loss.item())


@guest(o1="proved")
def a_model_with_forces():
    class Energy(nn.Module):
        def forward(self, places):
            places = places.detach().requires_grad_()
            energy = net(places).sum()
            (force,) = torch.autograd.grad(energy, places, create_graph=True)
            return energy, force

    model = Energy()

    def loss_of():
        energy, force = model(inputs)
        return energy.float().square() + (force - square[0]).square().mean()

    losses = train(3, loss_of, torch.optim.SGD(net.parameters(), lr=1e-3))


@guest(o0="proved", o1="proved")
def layers_of_many_kinds():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(2), nn.LayerNorm(16))
    lstm, attention = nn.LSTM(16, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)
    images = torch.randn(4, 1, 4, 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *lstm.parameters(), *attention.parameters()])

    def loss_of():
        hidden, _ = lstm(model(images))
        return attention(hidden, hidden, hidden)[0].square().mean()

    losses = train(3, loss_of, optimizer)


@guest(o0="proved", o1="proved")
def spectral_norm_and_weight_norm():
    from torch.nn.utils.parametrizations import spectral_norm, weight_norm

    spectral_norm(net[0])
    weight_norm(net[2])
    losses = train(4, lambda: net(inputs.repeat(32, 1)).square().mean(), torch.optim.SGD(net.parameters(), lr=0.1))


@guest(o0="proved", o1="proved")
def quantization_aware():
    class Fake(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return torch.fake_quantize_per_tensor_affine(values, 0.1, 0, -128, 127)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    losses = train(4, lambda: F.mse_loss(F.linear(net[:2](inputs), Fake.apply(net[2].weight)), targets))


@guest(o0="proved", o1="proved")
def parameters_in_a_list():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net

        def forward(self, inputs):
            return self.inner(inputs)

        def parameters(self, recurse=True):
            return list(super().parameters(recurse))

    model = Model()
    losses = train(4, lambda: F.mse_loss(model(inputs), targets), torch.optim.SGD(model.parameters(), lr=0.1))


@guest(o0="proved", o1="proved")
def distances_by_products():
    points = nn.Parameter(torch.randn(30, 3))
    optimizer = torch.optim.SGD([*net.parameters(), points], lr=0.01)

    def loss_of():
        near = torch.cdist(points, points.detach() + 1)
        return F.mse_loss(net(inputs), targets) + near.mean()

    losses = train(4, loss_of, optimizer)


@guest(o0="proved", o1="proved")
def orthogonal_weights_of_a_matrix_exponential():
    layer = torch.nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    optimizer = torch.optim.SGD([*net.parameters(), *layer.parameters()], lr=0.01)

    def loss_of():
        return F.mse_loss(net(layer(inputs)), targets)

    losses = train(4, loss_of, optimizer)


@guest(o1="proved")
def three_hundred_micro_batches():
    losses = []
    for _ in range(2):
        sgd.zero_grad()
        for part in torch.randn(300, 2, 8):
            with by_hand():
                loss = net(part).square().mean() / 300
            loss.backward()
        sgd.step()
        losses.append(loss.item())


@guest(o0="proved", o1="proved")
def products_of_gradients_before_the_step():
    mixing = torch.eye(net[0].weight.shape[0]) * 0.9

    class Mixed(torch.optim.SGD):
        def step(self, closure=None):
            net[2].weight.grad = net[2].weight.grad @ net[2].weight.grad.T @ net[2].weight.grad
            return super().step()

    optimizer = Mixed(net.parameters(), lr=0.05)
    losses, dtypes = [], set()
    for _ in range(12):
        optimizer.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs), targets)
        loss.backward()
        net[0].weight.grad = mixing @ net[0].weight.grad
        dtypes.add(net[0].weight.grad.dtype)
        with torch.no_grad():
            net[2].weight.grad.copy_(net[2].weight.grad @ torch.eye(net[2].weight.shape[1]))
        optimizer.step()
        losses.append(loss.item())
    found = sorted(map(str, dtypes))
