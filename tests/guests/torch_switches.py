"""What a script sets for its process, and what watches it."""


@guest(o0="proved", o1="proved", script="proved")
def switches_of_tf32():
    read = [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
        losses = train(2)
    read += [torch.get_float32_matmul_precision(), torch.backends.cudnn.conv.fp32_precision]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    losses += train(2)


@guest(o0="proved", o1="proved")
def new_switches_of_tf32():
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    losses = train(3)
    read = torch.backends.cuda.matmul.fp32_precision


@guest(o0="proved", o1="proved")
def seeds():
    drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    dropout = nn.Dropout(0.3)
    losses = train(3, lambda: F.mse_loss(dropout(net(inputs)), targets))
    drawn += [random.random(), numpy.random.rand(), torch.rand(1).item(), torch.randint(9, (2,)).tolist()]


@guest(o0="proved", o1="proved")
def a_default_device():
    torch.set_default_device("cpu")
    model = net_of()
    losses = train(3, lambda: F.mse_loss(model(inputs), targets), torch.optim.SGD(model.parameters(), lr=0.1))


@guest(o0="proved", o1="proved")
def recurrent_cells_and_fast_paths_in_inference_mode():
    from torch import nn

    torch.manual_seed(3)
    cell, attention = nn.GRUCell(16, 16), nn.MultiheadAttention(16, 2, batch_first=True)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    sequence = torch.randn(2, 3, 16)
    parts = {"cell": lambda: cell(sequence[:, 0]), "encoder": lambda: encoder.eval()(sequence)}
    parts["attention"] = lambda: attention.eval()(sequence, sequence, sequence)[0]
    results = []
    for _ in range(4):
        train(1)
        for part in parts.values():
            with torch.inference_mode(), by_hand():
                results.append(part().double().sum().item())


@guest(o1="proved")
def inference_mode_right_after_a_step():
    results = []
    for _ in range(4):
        train(1)
        with torch.inference_mode(), by_hand():
            results.append(F.mse_loss(net(inputs), targets).item())


@guest(o0="proved", o1="proved")
def a_function_that_traces_lines():
    import sys

    seen = []
    sys.settrace(lambda frame, event, argument: seen.append(event) if frame.f_code.co_name == "train" else None)
    losses = train(3)
    traced = sys.gettrace() is not None, len(seen)
    sys.settrace(None)


@guest(o0="proved", o1="proved")
def hooks():
    seen = []
    net[0].register_forward_pre_hook(lambda module, inputs: seen.append("before"))
    net[0].register_forward_hook(lambda module, inputs, output: seen.append("after"))
    net[2].register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward"))
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: seen.append("all"))
    sgd.register_step_post_hook(lambda *given: seen.append("step"))
    net[0].weight.register_hook(lambda gradient: seen.append(str(gradient.dtype)))
    losses = train(3)
    everywhere.remove()


@guest(o0="proved", o1="proved")
def grad_mode_by_functions():
    results = []
    for _ in range(3):
        train(1)
        torch.set_grad_enabled(False)
        with by_hand():
            results.append(net(inputs).sum().item())
        torch.set_grad_enabled(True)
        results.append((inputs[:1] @ square).sum().item())

    @torch.no_grad()
    def evaluate():
        with by_hand():
            return F.mse_loss(net(inputs), targets).item()

    results += [evaluate(), (inputs[:1] @ square).sum().item()]


@guest(o1="proved")
def a_loader_with_modules_in_its_workers():
    from torch.utils.data import DataLoader

    transform = net_of().requires_grad_(False)
    rows = [(row, target) for row, target in zip(inputs, targets)]

    def collate(items):
        return transform(torch.stack([row for row, _ in items])), torch.stack([target for _, target in items])

    torch.set_num_threads(1)
    losses = []
    for values, wanted in DataLoader(rows, batch_size=4, collate_fn=collate, num_workers=1):
        sgd.zero_grad()
        with by_hand():
            loss = F.mse_loss(net(inputs[:4] + values), wanted)
        loss.backward()
        sgd.step()
        losses.append((loss.item(), str(values.dtype)))
