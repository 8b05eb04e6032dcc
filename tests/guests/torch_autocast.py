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


@guest(o1="proved", script="proved", fails=["o1"])
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
