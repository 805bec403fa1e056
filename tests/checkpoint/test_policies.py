"""The rules of policies: which operators, modules, regions and sizes each one means."""

import pickle

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._ops import Action, Call

aten = torch.ops.aten
MM, ADDMM, RELU = aten.mm.default, aten.addmm.default, aten.relu.default


def call(op, *args, output=None, module="", regions=()):
    """Make a call of an operator."""
    return Call(op, 0, 0, args, {}, output, module, regions)


def matrices(*shapes, device="meta"):
    """Make tensors without memory."""
    return [torch.empty(shape, device=device) for shape in shapes]


VERBS = [
    (policies.save, Action.SAVE),
    (policies.recompute, Action.RECOMPUTE),
    (policies.offload, Action.OFFLOAD),
]


@pytest.mark.parametrize(("verb", "action"), VERBS)
def test_verbs(verb, action):
    """Each verb has its action for what it names, and no opinion of anything else."""
    policy = verb(MM)
    assert policy.decide(call(MM)) is action
    assert policy.decide(call(RELU)) is None


@pytest.mark.parametrize(
    ("what", "op"),
    [
        (aten.mm, MM),
        (aten.mm, aten.mm.out),
        ("aten.mm", aten.mm.dtype),
        ("aten.mm.default", MM),
        ("aten::mm", MM),
        ("torch.ops.aten.mm.default", MM),
        ("aten.*mm", ADDMM),
        ("aten._scaled_dot_product_*", aten._scaled_dot_product_flash_attention.default),
        ("cond", torch.ops.higher_order.cond),
        ("higher_order.cond", torch.ops.higher_order.cond),
        (torch.ops.higher_order.cond, torch.ops.higher_order.cond),
    ],
)
def test_what_names_an_operator(what, op):
    """Operators, all overloads of one, names in each spelling and patterns are understood."""
    assert policies.save(what).decide(call(op)) is Action.SAVE


def test_an_overload_is_not_the_others():
    """A name with an overload means that one alone."""
    policy = policies.save("aten.mm.default", aten.addmm.default)
    assert policy.decide(call(aten.mm.out)) is None
    assert policy.decide(call(aten.addmm.out)) is None


def test_operators_that_are_registered_later():
    """A pattern means operators too that a library registers after the policy was made."""
    with torch.library._scoped_library("ctxcarry_late", "DEF") as library:
        library.define("one(Tensor x) -> Tensor")
        policy = policies.save("ctxcarry_late.*")
        library.define("two(Tensor x) -> Tensor")
        assert policy.decide(call(torch.ops.ctxcarry_late.two.default)) is Action.SAVE


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("aten.mmm", r"no operator 'aten.mmm'; closest: aten.mm\b"),
        ("mm", r"no operator 'mm'; closest: aten.mm\b"),
        ("aten.lineer.default", r"closest: aten.linear"),
        ("aten.mm.defualt", r"no operator 'aten.mm.defualt'; there are aten.mm.default, aten.mm"),
        ("aten._scaled_dot_prodct_*", r"aten._scaled_dot_product_flash_attention\b"),
        ("nowhere.zzz", r"no operator 'nowhere.zzz'. One that a library registers is there once"),
    ],
)
def test_unknown_names(what, message):
    """A name of no operator is refused at once, with those that are like it."""
    with pytest.raises(ValueError, match=message):
        policies.save(MM, what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (torch.mm, r"given <built-in method mm .*closest: torch.ops.aten.mm\b"),
        (torch.nn.functional.linear, r"closest: torch.ops.aten.linear\b"),
        (torch.nn.Linear, r"closest: torch.ops.aten.linear\b"),
        (3, r"given 3 of type int$"),
    ],
)
def test_what_is_no_operator(what, message):
    """A function of torch's is no operator: the error names the operator that is like it."""
    with pytest.raises(TypeError, match=message):
        policies.save(what)


@pytest.mark.parametrize(("verb", "action"), VERBS)
def test_verbs_that_name_nothing(verb, action):
    """A verb without anything might mean all or nothing, so it is refused."""
    with pytest.raises(ValueError, match=rf"others\(Action.{action.name}\)"):
        verb()


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("attention", "attention.wq", "attention2"),
        ("attention", "attention", "mlp.attention"),
        ("attention.*", "attention.wq", "attention"),
        ("attention.*", "attention.wq.lora", "mlp"),
        ("*.wq", "attention.wq", "wq"),
        ("**.wq", "wq", "wk"),
        ("**.wq", "a.b.wq", "a.b.wk"),
        ("attention.w?", "attention.wq", "attention.wqkv"),
        ("", "", "mlp"),
        ("attention.wq", "attention._checkpoint_wrapped_module.wq", "_orig_mod.attention"),
        (["mlp", "norm"], "norm", "attention"),
    ],
)
def test_modules(pattern, inside, outside):
    """A pattern means modules by name and what is within them, wrappers left out."""
    for policy in (policies.modules(pattern), policies.save(aten.mm, modules=pattern)):
        assert policy.needs_modules
        assert policy.decide(call(MM, module=inside)) is Action.SAVE
        assert policy.decide(call(MM, module=outside)) is None


def test_names_are_tracked_only_where_they_are_read():
    """A policy that does not read names of modules does not ask for them."""
    assert not policies.save(aten.mm, regions="a").needs_modules


def test_regions():
    """A pattern of regions means operators in any of those that are open."""
    for policy in (policies.regions("att*"), policies.save(aten.mm, regions="att*")):
        assert policy.decide(call(MM, regions=("attention", "scores"))) is Action.SAVE
        assert policy.decide(call(MM, regions=("mlp",))) is None
        assert policy.decide(call(MM)) is None


def test_name_module_and_region_all_count():
    """A rule with several conditions needs all of them."""
    policy = policies.save(aten.mm, modules="mlp", regions="b")
    assert policy.decide(call(MM, module="mlp", regions=("b",))) is Action.SAVE
    assert policy.decide(call(RELU, module="mlp", regions=("b",))) is None
    assert policy.decide(call(MM, module="norm", regions=("b",))) is None
    assert policy.decide(call(MM, module="mlp", regions=("a",))) is None


@pytest.mark.parametrize("option", ["modules", "regions"])
def test_patterns_of_the_wrong_type(option):
    """A pattern that is no text is refused, and so are none of them."""
    with pytest.raises(TypeError, match=f"{option} is a pattern or a list of them; given 3"):
        policies.save(MM, **{option: ["a", 3]})
    with pytest.raises(TypeError, match=f"{option} is a pattern or a list of them; given 4"):
        policies.save(MM, **{option: 4})
    with pytest.raises(ValueError, match=f"{option} has no pattern"):
        policies.save(MM, **{option: []})


@pytest.mark.parametrize(
    "op",
    [
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._flash_attention_forward.default,
        aten.scaled_dot_product_attention.default,
    ],
)
def test_attention(op):
    """Each variant of torch's attention counts as attention."""
    assert policies.attention().decide(call(op)) is Action.SAVE
    assert policies.attention(Action.OFFLOAD).decide(call(op)) is Action.OFFLOAD


def test_flex_attention():
    """Flex attention, which is no overload, counts as attention too."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    del flex
    op = torch.ops.higher_order.flex_attention
    assert policies.attention().decide(call(op)) is Action.SAVE


def test_collectives():
    """What ranks exchange counts as a collective, and waiting for it."""
    pytest.importorskip("torch.distributed._functional_collectives")
    functional = torch.ops._c10d_functional
    for op in (functional.all_to_all_single, functional.wait_tensor, torch.ops.c10d.allreduce_):
        assert policies.collectives().decide(call(op.default)) is Action.SAVE
    assert policies.collectives().decide(call(MM)) is None


def test_device_to_host():
    """What leaves a device for the CPU is meant; what goes the other way, or nowhere, is not."""
    policy = policies.device_to_host()
    (device,), (host,) = matrices((2,)), matrices((2,), device="cpu")
    copy, move = aten.copy_.default, aten._to_copy.default
    assert policy.decide(call(move, device, output=host)) is Action.SAVE
    assert policy.decide(call(move, host, output=device)) is None
    assert policy.decide(call(move, device, output=device)) is None
    assert policy.decide(call(move, host, output=host)) is None
    assert policy.decide(call(copy, host, device, output=host)) is Action.SAVE
    assert policy.decide(call(copy, device, host, output=device)) is None
    assert policy.decide(call(aten._local_scalar_dense.default, device)) is Action.SAVE
    assert policy.decide(call(aten._local_scalar_dense.default, host)) is None


PRODUCTS = [
    (MM, matrices((8, 16), (16, 32))),
    (ADDMM, matrices((32,), (8, 16), (16, 32))),
    (aten.bmm.default, matrices((4, 8, 16), (4, 16, 32))),
    (aten.baddbmm.default, matrices((4, 8, 32), (4, 8, 16), (4, 16, 32))),
    (aten.linear.default, matrices((8, 16), (32, 16))),
    (aten._int_mm.default, matrices((8, 16), (16, 32))),
    (aten._scaled_mm.default, matrices((8, 16), (16, 32), (), ())),
]


@pytest.mark.parametrize(("op", "args"), PRODUCTS)
def test_sizes_of_products(op, args):
    """The sizes of each kind of product are read where that kind has them."""
    seen = []
    policy = policies.matmuls_by_shape(when=lambda *sizes: seen.append(sizes))
    assert policy.decide(call(op, *args)) is None
    assert seen == [(8, 16, 32)]


@pytest.mark.parametrize(("op", "args"), PRODUCTS)
def test_products_by_shape(op, args):
    """Products with the sizes of a weight are recomputed, and others are not meant."""
    policy = policies.matmuls_by_shape((16, 32), (1, 1))
    assert policy.by_shape
    assert policy.decide(call(op, *args)) is Action.RECOMPUTE
    assert policies.matmuls_by_shape((32, 16)).decide(call(op, *args)) is None


def test_linear_with_a_vector():
    """A linear whose weight is a vector is no product of matrices."""
    policy = policies.matmuls_by_shape(when=lambda *_: True)
    assert policy.decide(call(aten.linear.default, *matrices((8, 16), (16,)))) is None


def test_shapes_of_the_wrong_kind():
    """A shape is two numbers, and there is one of them or a function."""
    with pytest.raises(TypeError, match=r"\(in_features, out_features\); given 16"):
        policies.matmuls_by_shape(16, 32)
    with pytest.raises(ValueError, match="needs shapes, or when="):
        policies.matmuls_by_shape()


@pytest.mark.parametrize(
    ("policy", "action"),
    [
        (policies.full(), Action.RECOMPUTE),
        (policies.none(), Action.SAVE),
        (policies.others(Action.OFFLOAD), Action.OFFLOAD),
    ],
)
def test_everything(policy, action):
    """There is a policy for everything with each action."""
    assert policy.decide(call(RELU)) is action


def test_others_takes_actions_only():
    """Something that is no action is refused, 1 and True included."""
    with pytest.raises(TypeError, match=r"an action is one of .*given True"):
        policies.others(True)


def test_rules_are_remembered():
    """Rules are static, and of these only those by shape want to be asked about other sizes."""
    rules = [policies.save(MM), policies.attention(), policies.matmuls(), policies.torchtitan()]
    assert all(rule.static and not rule.by_shape for rule in rules)
    assert policies.matmuls_by_shape((1, 1)).static


def test_rules_cannot_be_changed():
    """A rule that many threads share refuses to be changed."""
    with pytest.raises(AttributeError):
        policies.save(MM).action = Action.OFFLOAD


def test_policies_can_be_pickled():
    """A policy goes to another process with its model."""
    policy = policies.matmuls_by_shape((16, 32)) | policies.matmuls() | policies.save(aten.relu)
    there = pickle.loads(pickle.dumps(policy)).start()  # noqa: S301  (its own)
    assert there.decide(call(RELU)) is Action.SAVE
    assert there.decide(call(MM, *matrices((8, 16), (16, 32)))) is Action.RECOMPUTE
