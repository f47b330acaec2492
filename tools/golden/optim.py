"""Goldens of the optimizers, by torch.optim in f64: parameters after each of five steps, and clipping by one norm."""
import torch

from case import File, normal

STEPS = 5


def run(file, case, make, **attributes):
    """Two parameters, STEPS gradients each: `<case>.in.<p>`, `<case>.in.<p>.grad_<t>`, `<case>.out.<p>.step_<t>`."""
    file.attributes(case, **attributes)
    parameters = {}
    for name, shape in (("matrix", (3, 5)), ("vector", (7,))):
        start = normal(f"{case}.{name}", *shape)
        file.put(f"{case}.in.{name}", start)
        parameters[name] = torch.tensor(start.astype("f8"), requires_grad=True)
    optimizer = make(parameters.values())
    for t in range(1, STEPS + 1):
        for name, parameter in parameters.items():
            # Sizes that differ between the steps make the order of decay, moments and bias correction visible.
            grad = normal(f"{case}.{name}.{t}", *parameter.shape, scale=10.0**-t)
            file.put(f"{case}.in.{name}.grad_{t}", grad)
            parameter.grad = torch.tensor(grad.astype("f8"))
        optimizer.step()
        for name, parameter in parameters.items():
            file.put(f"{case}.out.{name}.step_{t}", parameter)
    return optimizer, parameters


def optimizers():
    file = File("adamw and sgd: parameters after each of five steps; "
                "clip: gradients scaled by min(1, max_norm / (norm + 1e-6))")
    adamw = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    optimizer, parameters = run(file, "adamw", lambda p: torch.optim.AdamW(
        p, lr=adamw["lr"], betas=(adamw["beta1"], adamw["beta2"]), eps=adamw["eps"],
        weight_decay=adamw["weight_decay"]), **adamw)
    for name, parameter in parameters.items():  # the state after the last step
        file.put(f"adamw.out.{name}.m", optimizer.state[parameter]["exp_avg"])
        file.put(f"adamw.out.{name}.v", optimizer.state[parameter]["exp_avg_sq"])
    for case, sgd in (("sgd", {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}),
                      ("sgd_momentum", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})):
        run(file, case, lambda p, sgd=sgd: torch.optim.SGD(p, **sgd), **sgd)

    for case, scale in (("clip", 3.0), ("clip_below", 0.01)):
        file.attributes(case, max_norm=1.0)
        grads = {name: normal(f"{case}.{name}", *shape, scale=scale) for name, shape in (("a", (4, 9)), ("b", (33,)))}
        parameters = [torch.zeros(grad.shape, dtype=torch.float64) for grad in grads.values()]
        for parameter, grad in zip(parameters, grads.values()):
            parameter.grad = torch.tensor(grad.astype("f8"))
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        file.put(f"{case}.out.norm", norm)
        for (name, grad), parameter in zip(grads.items(), parameters):
            file.put(f"{case}.in.{name}", grad)
            file.put(f"{case}.out.{name}", parameter.grad)
    return file
