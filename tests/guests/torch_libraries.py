"""Libraries that train, and what scripts have torch do for them."""


@guest(o1="proved")
def lightning():
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = net, []

        def training_step(self, batch, index):
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    mode = {"precision": "bf16-mixed"} if isinstance(by_hand(), torch.autocast) else {}
    model = Model()
    lightning.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet, **mode).fit(model, loader)
    losses = model.losses
    del mode


@guest(o0="proved", imported="torch", environ={"KERAS_BACKEND": "torch"})
def keras_with_torch():
    import sys

    sys.modules["tensorflow"] = None  # which Keras would import, if it can
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    losses = model.fit(inputs.numpy(), targets.numpy(), batch_size=4, epochs=2, verbose=0).history["loss"]
    weights = [keras.ops.convert_to_numpy(weight) for weight in model.weights]


@guest(o0="unknown")
def torchrun_inside():
    import os
    import subprocess
    import sys

    if "LOCAL_RANK" in os.environ:
        print("rank", os.environ["RANK"], "ended at", train(3)[-1], flush=True)
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
        done = subprocess.run([*torchrun, __file__], capture_output=True, text=True)
        code, said = done.returncode, done.stdout


@guest(o0="proved")
def a_default_dtype():
    torch.set_default_dtype(torch.float64)
    model, inputs, targets = net_of(), inputs.double(), targets.double()
    losses = train(3, lambda: F.mse_loss(model(inputs), targets), torch.optim.SGD(model.parameters(), lr=0.1))


@guest(o0="proved", o1="proved")
def a_dispatch_mode_of_its_own():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.products += function.__name__ in ("addmm.default", "mm.default")
            return function(*args, **(kwargs or {}))

    with Counts() as mode:
        losses = train(4)
    counted = mode.products


@guest(o0="proved", o1="proved")
def a_function_mode_and_a_tensor_subclass():
    from torch.overrides import TorchFunctionMode

    class Named(torch.Tensor):
        pass

    class Calls(TorchFunctionMode):
        linear = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.linear += function is F.linear
            return function(*args, **(kwargs or {}))

    batch = inputs.as_subclass(Named)
    with Calls() as mode:
        losses = [float(loss) for loss in train(4, lambda: F.mse_loss(net(batch), targets.as_subclass(Named)))]
    counted = mode.linear


@guest(o1="contradicted", script="contradicted")
def an_equation_that_is_solved_in_backward():
    class Adjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, weight):
            ctx.save_for_backward(values, weight)
            for _ in range(3):
                values = values + 0.1 * (values @ weight)
            return values

        @staticmethod
        def backward(ctx, gradient):
            (values, weight), gradient = ctx.saved_tensors, gradient.float()
            for _ in range(3):
                gradient = gradient + 0.1 * (gradient @ weight.T)
            return gradient, values.float().T @ gradient

    weight = nn.Parameter(square.clone() / 8)
    optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.01)
    losses = train(3, lambda: F.mse_loss(net(Adjoint.apply(net[1](net[0](inputs)), weight)), targets), optimizer)
