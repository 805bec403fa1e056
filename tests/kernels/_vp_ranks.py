"""What each of three ranks does: the cases of `_vp_cases`, wrong shards, and the rest."""

import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import _vp_cases as cases
import torch
import torch.distributed as dist
from ctxcarry_kernels import _path, linear_cross_entropy

from ctxcarry import process_groups

SIZE = 3
WRONG = {
    "overlap": (0, 299, 377),
    "gap": (0, 301, 378),
    "beginning": (10, 310, 387),
    "same": (0, 0, 0),
    "some": (0, None, None),
}


class Counted:
    """The collectives of ``torch.distributed``, counted."""

    GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    NAMES = ("all_reduce", GATHER)

    def __init__(self):
        self.counts = dict.fromkeys(self.NAMES, 0)

    def __enter__(self):
        self.own = {name: getattr(dist, name) for name in self.NAMES}
        for name in self.NAMES:
            setattr(dist, name, self.counting(name))
        return self.counts

    def __exit__(self, *_):
        for name, own in self.own.items():
            setattr(dist, name, own)

    def counting(self, name):
        """Return the collective, which counts itself first."""

        def call(*args, **kwargs):
            self.counts[name] += 1
            return self.own[name](*args, **kwargs)

        return call


def run(rank, folder, path):
    """Join the world, and leave in a file what each task returns, or what is raised."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(Path(folder) / "store"), SIZE),
            rank=rank,
            world_size=SIZE,
            timeout=timedelta(seconds=90),
        )
        try:
            results = work(rank, path)
            dist.barrier()
        finally:
            dist.destroy_process_group()
    except BaseException:
        results = traceback.format_exc()
        raise
    finally:
        torch.save(results, Path(folder) / f"{rank}.pt")


def work(rank, path):
    """Return what each task returns."""
    alone = [dist.new_group([i]) for i in range(SIZE)]
    # Its ranks are not those of the world.
    groups = {"world": dist.group.WORLD, "pair": dist.new_group([1, 2]), "alone": alone[rank]}
    results = {}
    for name, case in cases.CASES[path].items():
        if rank in dist.get_process_group_ranks(groups[case.group]):
            results[name] = compute(case, groups[case.group])
    results["one rank"] = one_rank() if rank == 0 else None
    results["ignored group"] = ignored_group(groups["world"], rank)
    results["wrong"] = {name: wrong(starts, groups["world"]) for name, starts in WRONG.items()}
    results["after wrong"] = compute(cases.CASES[path]["three ranks"], groups["world"])
    results["no tokens"] = no_tokens(groups["world"])
    if path == "eager":
        results["compiled"] = compiled(groups["world"])
        results["checked"] = checked(groups["world"])
    return results


def compute(case, group, call=linear_cross_entropy):
    """Return results and gradients of this rank, and which collectives there were."""
    rank = dist.get_rank(group)
    hidden, weight, bias, labels, gradients = cases.inputs(case)
    part = case.part(rank)
    weight, bias = weight[part].clone(), None if bias is None else bias[part].clone()
    hidden.requires_grad_("hidden" in case.needs)
    weight.requires_grad_("weight" in case.needs)
    options = dict(case.options)
    if bias is not None:
        options["bias"] = bias.requires_grad_("weight" in case.needs)
    if case.starts is not None:
        options["vocab_start"] = part.start
    if not case.ambient:
        options["process_group"] = group
    with process_groups.use(tp=group) if case.ambient else nullcontext(), Counted() as forward:
        out = call(hidden, weight, labels, **options)
    with Counted() as backward:
        torch.autograd.backward(list(out), [g.to(o.dtype) for g, o in zip(gradients, out)])
    return {
        "logprobs": out.logprobs.detach(),
        "entropy": out.entropy.detach(),
        "hidden": hidden.grad,
        "weight": weight.grad,
        "bias": None if bias is None else bias.grad,
        "counts": (forward[Counted.GATHER], backward["all_reduce"]),
        "fused": _path.why_not_fused(hidden, weight) is None,
    }


def one_rank():
    """Return what one rank with all the words makes of the first case."""
    case = cases.Case((sum(cases.WORDS),))
    return compute(case, None, lambda *a, **k: linear_cross_entropy(*a, **k | OWN))


OWN = {"process_group": False}


def ignored_group(group, rank):
    """Return the logprobs of this rank's own words, with an ambient group that is not asked."""
    hidden, weight, _, labels, _ = cases.inputs(cases.Case())
    part = cases.Case().part(rank)
    with process_groups.use(tp=group), Counted() as counts:
        out = linear_cross_entropy(
            hidden, weight[part], labels, process_group=False, vocab_start=part.start
        )
    return out.logprobs, sum(counts.values())


def wrong(starts, group):
    """Return what is said of shards that do not add up, here of a size no good call had."""
    hidden, weight, _, labels, _ = cases.inputs(cases.Case((300, 78, 135)))
    rank = dist.get_rank(group)
    weight = weight[cases.Case((300, 78, 135)).part(rank)]
    try:
        linear_cross_entropy(hidden, weight, labels, process_group=group, vocab_start=starts[rank])
    except ValueError as error:
        return str(error)
    return "nothing raised"


def no_tokens(group):
    """Return gradients of a call without tokens."""
    _, weight, _, labels, _ = cases.inputs(cases.Case())
    hidden = torch.empty(0, cases.H, requires_grad=True)
    weight = weight[cases.Case().part(dist.get_rank(group))].clone().requires_grad_()
    out = linear_cross_entropy(hidden, weight, labels[:0], process_group=group)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    return out.logprobs.shape, hidden.grad.shape, weight.grad.abs().sum().item()


def compiled(group):
    """Return what code makes that is compiled as a whole, under an ambient group."""
    call = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    return compute(cases.Case(ambient=True), group, call)


def checked(group):
    """Return what ``CTXCARRY_CHECK_LABELS`` says of labels that another rank has, and of others."""
    import os

    os.environ["CTXCARRY_CHECK_LABELS"] = "1"
    try:
        compute(cases.Case(), group)
        compute(cases.Case(labels="out of range"), group)
    except ValueError as error:
        return str(error)
    finally:
        del os.environ["CTXCARRY_CHECK_LABELS"]
    return "nothing raised"
