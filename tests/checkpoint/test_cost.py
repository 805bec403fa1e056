"""How long operators take, by a roofline whose figures make the sums easy."""

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint._cost import Roofline, estimate, flops_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# A flop and a byte take a second, a byte between devices ten, no launch.
SLOW = Roofline("slow", {torch.float32: 1.0, torch.bfloat16: 2.0}, 1.0, 0.1, 0.1, launch=0.0)
FAST_MEMORY = Roofline("flops", {torch.float32: 1.0, torch.bfloat16: 2.0}, 1e30, 1e30, 1e30, 0.0)
FAST_FLOPS = Roofline("bytes", {torch.float32: 1e30}, 1.0, 0.1, 0.1, launch=0.0)


class Costs(TorchDispatchMode):
    """Estimate what runs."""

    def __init__(self, roofline):
        super().__init__()
        self.roofline, self.found = roofline, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        ms = estimate(func, args, kwargs or {}, output, self.roofline)
        self.found.append((func._overloadpacket.__name__, ms))
        return output


def costs(roofline, function, *args):
    """Return the names of the operators of a function, and their seconds."""
    with Costs(roofline) as mode:
        function(*args)
    return [(name, ms / 1e3) for name, ms in mode.found]


@pytest.mark.parametrize("fake", [False, True])
def test_a_product(fake):
    """A product takes the time of its flops or of its bytes, whichever is longer."""
    with FakeTensorMode() if fake else torch.no_grad():
        left, right = torch.ones(4, 8), torch.ones(8, 16)
        assert costs(FAST_MEMORY, torch.mm, left, right) == [("mm", pytest.approx(2 * 4 * 8 * 16))]
        moved = 4 * (4 * 8 + 8 * 16 + 4 * 16)
        assert costs(FAST_FLOPS, torch.mm, left, right) == [("mm", pytest.approx(moved))]


def test_the_type_of_a_product():
    """A type with twice the rate takes half the time."""
    left, right = torch.ones(4, 8).bfloat16(), torch.ones(8, 16).bfloat16()
    assert costs(FAST_MEMORY, torch.mm, left, right) == [("mm", pytest.approx(4 * 8 * 16))]


def test_views_take_no_time():
    """Views, and memory that nobody writes, take nothing; a copy does."""
    tensor = torch.ones(4, 8)
    roofline = Roofline("launch", {torch.float32: 1.0}, 1.0, 1.0, 1.0, launch=100.0)
    found = costs(roofline, lambda: (tensor.t().reshape(32), tensor[1:].view(-1), tensor.detach()))
    assert {"t", "clone", "slice", "detach"} <= {name for name, _ in found}
    for name, seconds in found:
        assert (seconds > 0) == (name == "clone"), name
    assert costs(roofline, torch.empty_like, tensor) == [("empty_like", 0)]
    assert costs(roofline, tensor.add_, 1)[0][1] == pytest.approx(100 + 2 * 128)


def test_what_is_in_memory_once_is_read_once():
    """An expanded argument counts by what there is of it."""
    tensor, row = torch.ones(4, 8), torch.ones(8)
    found = costs(SLOW, lambda: tensor + row.expand(4, 8))
    assert found[-1] == ("add", pytest.approx(4 * (32 + 8 + 32)))


def test_picking_reads_what_it_returns():
    """An embedding reads the rows that it picks, not the whole table."""
    table, rows = torch.ones(1000, 8), torch.tensor([1, 2])
    name, seconds = costs(SLOW, torch.nn.functional.embedding, rows, table)[-1]
    assert (name, seconds) == ("embedding", pytest.approx(4 * 16 * 2 + 16))


def test_lists_of_tensors():
    """Tensors in lists count on both sides."""
    parts = [torch.ones(8), torch.ones(8)]
    assert costs(SLOW, torch.cat, parts) == [("cat", pytest.approx(4 * 32))]
    assert costs(SLOW, torch._foreach_add, parts, 1)[-1][1] == pytest.approx(4 * 32)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu(causal):
    """The attention that torch has no formula for counts too, half of it where causal."""
    query, key = torch.ones(2, 4, 16, 8), torch.ones(2, 4, 16, 8)
    with Costs(FAST_MEMORY) as mode:
        torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=causal)
    found = dict(mode.found)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    whole = 2 * 2 * 4 * 16 * 16 * (8 + 8)
    assert found[name] / 1e3 == pytest.approx(whole / 2 if causal else whole)


@pytest.mark.parametrize(
    ("op", "args", "flops"),
    [
        (aten.linear.default, ((2, 4, 8), (16, 8)), 2 * 2 * 4 * 8 * 16),
        (aten.mv.default, ((4, 8), (8,)), 2 * 4 * 8),
        (aten._grouped_mm.default, ((4, 8), (3, 8, 16)), 2 * 4 * 8 * 16),
        (aten.addmm.default, ((16,), (4, 8), (8, 16)), 2 * 4 * 8 * 16),
        (aten.relu.default, ((4, 8),), 0),
    ],
)
def test_flops(op, args, flops):
    """Products count by their sizes, all others not at all."""
    assert flops_of(op, tuple(torch.ones(shape) for shape in args), {}, None) == flops


def test_a_formula_of_ones_own():
    """What is registered with torch's counter counts here."""
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    with torch.library._scoped_library("ctxcarry_test_cost", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        packet = torch.ops.ctxcarry_test_cost.twice

        @register_flop_formula(packet)
        def flops(shape, **_):
            return 7 * shape[0]

        try:
            found = costs(FAST_MEMORY, packet, torch.ones(3))
        finally:
            del flop_registry[packet]
    assert found[-1] == ("twice", pytest.approx(21))


def test_a_copy_between_devices():
    """What leaves the device moves at the speed of the link to the host."""
    with FakeTensorMode():
        tensor = torch.empty(8, device="cuda")
        output = torch.empty(8)
    ms = estimate(aten._to_copy.default, (tensor,), {"device": "cpu"}, output, SLOW)
    assert ms / 1e3 == pytest.approx(32 / 0.1)


@pytest.fixture
def mesh():
    """Give a mesh of four ranks, of which this process is one and the others are made up."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    yield distributed.init_device_mesh("cpu", (4,))
    distributed.destroy_process_group()


def test_a_distributed_tensor_counts_by_its_part(mesh):
    """Of a DTensor only what this rank has counts."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    left = DTensor.from_local(torch.ones(4, 8), mesh, [Shard(0)])
    right = DTensor.from_local(torch.ones(8, 16), mesh, [Replicate()])
    output = left @ right
    assert output.shape == (16, 16)
    ms = estimate(aten.mm.default, (left, right), {}, output, FAST_MEMORY)
    assert ms / 1e3 == pytest.approx(2 * 4 * 8 * 16)
    ms = estimate(aten.mm.default, (left, right), {}, output, FAST_FLOPS)
    assert ms / 1e3 == pytest.approx(4 * (4 * 8 + 8 * 16 + 4 * 16))


def test_a_collective_moves_over_the_link():
    """What other ranks have comes at the speed of the link."""
    tensor = torch.ones(8)
    op = torch.ops._c10d_functional.all_gather_into_tensor.default
    ms = estimate(op, (tensor, 4, "group"), {}, torch.ones(32), SLOW)
    assert ms / 1e3 == pytest.approx(4 * 40 / 0.1)


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h100", "H100"),
        ("cpu", "cpu"),
    ],
)
def test_cards_by_name(device, card):
    """The name that the driver gives leads to the card."""
    roofline = Roofline.of(device)
    assert roofline.name == card
    assert roofline.rate(torch.bfloat16) >= roofline.rate(torch.float32) > 0
    assert roofline.offload_ms(1 << 30) > 0


def test_a_card_that_is_not_known():
    """An unknown name is refused with those that are known."""
    with pytest.raises(ValueError, match="H100, H800"):
        Roofline.of("H99")
    with pytest.raises(ValueError, match="speed of 'meta'"):
        Roofline.of(torch.device("meta"))


def test_a_card_by_its_clocks():
    """Another card is estimated from what torch tells of it: here an A100, near its figures."""
    from types import SimpleNamespace

    from ctxcarry_checkpoint._roofline import _from_properties

    properties = SimpleNamespace(
        name="new",
        major=8,
        minor=0,
        multi_processor_count=108,
        clock_rate=1410000,
        memory_clock_rate=1593000,
        memory_bus_width=5120,
    )
    found, known = _from_properties(properties), Roofline.of("A100")
    assert found.rate(torch.bfloat16) == pytest.approx(known.rate(torch.bfloat16), rel=0.05)
    assert found.memory_bytes == pytest.approx(known.memory_bytes, rel=0.05)
