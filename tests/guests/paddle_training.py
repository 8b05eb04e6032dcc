"""Loops of Paddle, which can't be imported after TensorFlow."""

# ruff: noqa: F821 - names of head_paddle.py


@guest(o0="proved", imported="paddle")
def autocast_in_its_spellings_and_a_scaler():
    scaler = paddle.amp.GradScaler(enable=False)

    @paddle.amp.auto_cast(enable=False)
    def loss_of():
        with paddle.amp.amp_guard(enable=False), paddle.amp.auto_cast(dtype="bfloat16"):
            return F.mse_loss(net(inputs), targets)

    losses = []
    for _ in range(3):
        loss = loss_of()
        scaler.scale(loss).backward()
        scaler.minimize(sgd, loss)
        sgd.clear_grad()
        losses.append(float(loss))


@guest(o0="unknown", imported="paddle")
def a_static_graph():
    def train_graph():
        main, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, start):
            x = paddle.static.data("x", [16, 8])
            loss = paddle.mean(paddle.static.nn.fc(x, 1) ** 2)
            paddle.optimizer.SGD(0.1).minimize(loss)
        executor = paddle.static.Executor()
        executor.run(start)
        given = numpy.random.rand(16, 8).astype("float32")
        return [float(executor.run(main, {"x": given}, [loss])[0]) for _ in range(3)]

    paddle.enable_static()
    losses = train_graph()
    paddle.disable_static()


@guest(o0="proved", imported="paddle")
def workers_of_a_loader_and_a_closure():
    class Ones(paddle.io.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return numpy.full(8, index, "float32")

    lbfgs = paddle.optimizer.LBFGS(0.1, max_iter=3, parameters=net.parameters())

    def closure():
        lbfgs.clear_grad()
        loss = net(batch).square().mean()
        loss.backward()
        return loss

    loader = paddle.io.DataLoader(Ones(), batch_size=2, num_workers=1)
    losses = []
    for batch in loader:
        losses.append(float(lbfgs.step(closure)))


@guest(o0="proved", imported="paddle")
def an_exit_after_its_first_step():
    import os

    print(train(1), flush=True)
    os._exit(0)


@guest(o0="proved", imported="paddle")
def attention_and_a_recurrent_layer():
    mixed = paddle.nn.LayerList([paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), paddle.nn.LSTM(8, 4)])
    adam = paddle.optimizer.Adam(0.1, parameters=mixed.parameters())
    losses = []
    for _ in range(3):
        loss = (mixed[1](mixed[0](inputs.reshape([2, -1, 8])))[0] @ paddle.ones([4, 1])).square().mean()
        loss.backward()
        adam.step()
        adam.clear_grad()
        losses.append(float(loss))


@guest(o0="unknown", imported="paddle")
def a_compiled_model_that_outlives_its_observed_steps():
    compiled = paddle.jit.to_static(net, full_graph=True)
    losses = []
    for _ in range(4):
        loss = F.mse_loss(compiled(inputs), targets)
        loss.backward()
        sgd.step()
        sgd.clear_grad()
        losses.append(float(loss))
