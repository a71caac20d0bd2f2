# SPDX-License-Identifier: BSD-3-Clause
"""Agreement in law with torch.nn, jax.nn.initializers and Keras's documented definitions.

Standard deviations and bounds to 1e-12: torch's are the arguments it passes to its own generators;
those of JAX and Keras come from their documented formulas. Samples by Kolmogorov-Smirnov.
"""

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

import initcore as ic
from draws import moments_agree, same_law

SHAPES = [(64, 48), (16, 8, 3, 3), (6, 4, 5), (3, 2, 4, 3, 2)]
# The standard deviation of a standard normal between −2 and 2.
CUT = 0.87962566103423978


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def asked_of_torch(torch, initialize, shape):
    """("normal", std) or ("uniform", bound): what a function of torch.nn.init asks of a tensor."""
    asked = []

    class Recorder(torch.Tensor):
        def normal_(self, mean=0.0, std=1.0, **_):
            assert mean == 0
            asked.append(("normal", std))
            return self

        def uniform_(self, low=0.0, high=1.0, **_):
            assert low == -high
            asked.append(("uniform", high))
            return self

    initialize(torch.empty(shape).as_subclass(Recorder))
    assert len(asked) == 1
    return asked[0]


TORCH = [  # ours, theirs, arguments of theirs
    (ic.xavier_normal(), "xavier_normal_", {}),
    (ic.xavier_uniform(), "xavier_uniform_", {}),
    (ic.xavier_uniform(5 / 3), "xavier_uniform_", {"gain": 5 / 3}),
    (ic.xavier_normal(0.5), "xavier_normal_", {"gain": 0.5}),
    # torch's default is a leaky_relu of slope 0
    (ic.kaiming_normal(), "kaiming_normal_", {}),
    (ic.kaiming_uniform(), "kaiming_uniform_", {"nonlinearity": "relu"}),
    (ic.kaiming_uniform(a=math.sqrt(5)), "kaiming_uniform_", {"a": math.sqrt(5)}),
    (ic.kaiming_normal(a=0.2, mode="fan_out"), "kaiming_normal_", {"a": 0.2, "mode": "fan_out"}),
    (
        ic.kaiming_normal(nonlinearity="tanh", convention="torch"),
        "kaiming_normal_",
        {"nonlinearity": "tanh"},
    ),
    (
        ic.kaiming_uniform(nonlinearity="selu", convention="torch", mode="fan_out"),
        "kaiming_uniform_",
        {"nonlinearity": "selu", "mode": "fan_out"},
    ),
    (ic.lecun_normal(), "kaiming_normal_", {"nonlinearity": "linear"}),
    (ic.torch_linear(), "kaiming_uniform_", {"a": math.sqrt(5)}),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("ours", "theirs", "arguments"), TORCH)
def test_torchs_functions(torch, ours, theirs, arguments, shape):
    """pytorch #15314, #57109: what its defaults and a = √5 mean, from torch itself."""
    function = getattr(torch.nn.init, theirs)
    kind, value = asked_of_torch(torch, lambda w: function(w, **arguments), shape)
    if kind == "normal":
        assert ours.std(shape) == pytest.approx(value, rel=1e-12)
    else:
        assert ours.bound(shape) == pytest.approx(value, rel=1e-12)
        assert ours.std(shape) == pytest.approx(value / math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_torchs_fans(torch, shape):
    """Equal for plain layouts. Of a depthwise weight torch, which ignores groups, says (9, 36)."""
    fans = torch.nn.init._calculate_fan_in_and_fan_out
    assert ic.fans(shape) == fans(torch.empty(shape))
    assert fans(torch.empty(4, 1, 3, 3)) == (9, 36)
    assert ic.fans((4, 1, 3, 3), groups=4) == (9, 9)
    # Lasagne #858, tensorflow #31192: (in, out, …) read the other way round
    assert fans(torch.empty(64, 32, 4, 4)) == ic.fans((64, 32, 4, 4), transposed=True)[::-1]


def layers(torch):
    """torch's layers, and our initializer of each parameter."""
    nn = torch.nn
    conv, back = ic.torch_conv(), ic.torch_conv_transpose()
    return {
        "Linear": (nn.Linear(48, 640), ic.torch_linear(), {"fan_in": 48}),
        "Conv1d": (nn.Conv1d(24, 96, 5), conv, {"fan_in": 120}),
        "Conv2d": (nn.Conv2d(16, 96, 3), conv, {"fan_in": 144}),
        "grouped": (nn.Conv2d(64, 256, 3, groups=16), conv, {"fan_in": 36}),
        "Conv3d": (nn.Conv3d(4, 96, (3, 1, 2)), conv, {"fan_in": 24}),
        "transposed": (nn.ConvTranspose2d(64, 32, 4), back, {"fan_in": 512}),
        "transposed, grouped": (nn.ConvTranspose2d(64, 256, 3, groups=8), back, {"fan_in": 288}),
    }


@pytest.mark.parametrize(
    "layer",
    ["Linear", "Conv1d", "Conv2d", "grouped", "Conv3d", "transposed", "transposed, grouped"],
)
def test_torchs_layers(torch, layer):
    """Weights and biases are U(±1/√fan_in) with torch's own fan_in, which for a transposed
    convolution is its outputs' (1/√512 for (64, 32, 4, 4))."""
    torch.manual_seed(0)
    module, init, fan = layers(torch)[layer]
    shape = tuple(module.weight.shape)
    bound = 1 / math.sqrt(fan["fan_in"])
    assert init.bound(shape) == pytest.approx(bound, rel=1e-12)
    assert init.std(shape) == pytest.approx(bound / math.sqrt(3), rel=1e-12)
    theirs = module.weight.detach().numpy()
    assert 0.999 * bound < np.abs(theirs).max() <= bound * (1 + 1e-7)
    same_law(theirs, init(shape, seed=1, name="weight"))
    bias = ic.torch_linear(**fan)
    assert bias.bound(tuple(module.bias.shape)) == pytest.approx(bound, rel=1e-12)
    same_law(module.bias.detach().numpy(), bias(tuple(module.bias.shape), seed=1, name="bias"))


@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU", "LSTMCell"])
def test_torchs_recurrent_layers(torch, layer):
    """U(±1/√hidden_size) for every parameter, biases too."""
    torch.manual_seed(0)
    init = ic.torch_rnn(hidden_size=64)
    for name, parameter in getattr(torch.nn, layer)(30, 64).named_parameters():
        shape = tuple(parameter.shape)
        assert init.bound(shape) == pytest.approx(1 / 8, rel=1e-12)
        theirs = parameter.detach().numpy()
        assert np.abs(theirs).max() <= 1 / 8
        same_law(theirs, init(shape, seed=1, name=name))


def test_torchs_embedding(torch):
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(300, 200).weight.detach().numpy()
    assert ic.torch_embedding().std((300, 200)) == 1
    same_law(theirs, ic.torch_embedding()((300, 200), seed=1, name="tokens"))


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize(("ours", "theirs", "arguments"), TORCH[:8:2])
def test_samples_of_torchs_functions(torch, ours, theirs, arguments, shape):
    shape = (shape[0] * 20, *shape[1:])
    w = torch.empty(shape)
    getattr(torch.nn.init, theirs)(w, generator=torch.Generator().manual_seed(3), **arguments)
    same_law(w.numpy(), ours(shape, seed=1, name="w"))


@pytest.mark.parametrize(
    ("mean", "std", "low", "high"), [(0, 1, -2, 2), (0.5, 2, -1, 4), (0, 0.02, -0.04, 0.04)]
)
def test_torchs_truncated_normal_has_absolute_bounds(torch, mean, std, low, high):
    """torchtitan #3334, timm #1286: ours between `bounds` is torch's `trunc_normal_`."""
    w = torch.empty(300, 200)
    generator = torch.Generator().manual_seed(3)
    torch.nn.init.trunc_normal_(w, mean, std, low, high, generator=generator)
    init = ic.truncated_normal(std, mean, bounds=(low, high))
    same_law(w.numpy(), init((300, 200), seed=1, name="w"))
    moments_agree(w.numpy(), init.law(()).mean, init.std(()))


# --- JAX: its documented formulas, and samples that a process of its own draws -------------------

MODES = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: math.sqrt(fan_in * fan_out),
}
# JAX and Keras store (*kernel, in, out) and truncate their normals.
HWIO = {"in_axis": -2, "out_axis": -1}
TRUNCATED = {"distribution": "truncated_normal", **HWIO}

NAMED = {  # name: scale, mode, distribution, ours; the documentations of both libraries
    "glorot_normal": (1, "fan_avg", "truncated_normal", ic.glorot_normal),
    "glorot_uniform": (1, "fan_avg", "uniform", ic.glorot_uniform),
    "he_normal": (2, "fan_in", "truncated_normal", ic.he_normal),
    "he_uniform": (2, "fan_in", "uniform", ic.he_uniform),
    "lecun_normal": (1, "fan_in", "truncated_normal", ic.lecun_normal),
    "lecun_uniform": (1, "fan_in", "uniform", ic.lecun_uniform),
}


def documented(scale, mode, distribution, fan_in, fan_out):
    """(std, bound) of VarianceScaling: variance scale/n; a truncated normal's parent has
    √(scale/n)/0.87962566103423978 and is cut at two of these."""
    std = math.sqrt(scale / MODES[mode](fan_in, fan_out))
    bound = {
        "normal": math.inf,
        "truncated_normal": 2 * std / CUT,
        "uniform": math.sqrt(3) * std,
    }[distribution]
    return std, bound


@pytest.mark.parametrize("shape", [(48, 64), (3, 3, 8, 16), (5, 4, 6)])
@pytest.mark.parametrize("name", NAMED)
def test_the_named_initializers_of_jax_and_keras(name, shape):
    scale, mode, distribution, make = NAMED[name]
    receptive = math.prod(shape[:-2])
    fan_in, fan_out = receptive * shape[-2], receptive * shape[-1]
    std, bound = documented(scale, mode, distribution, fan_in, fan_out)
    init = make(**(TRUNCATED if distribution == "truncated_normal" else HWIO))
    assert init.std(shape) == pytest.approx(std, rel=1e-12)
    assert init.bound(shape) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
def test_variance_scaling_of_jax_and_keras(mode, distribution):
    """Also the geometric mean of the fans, which is JAX's alone; and its batch axes."""
    init = ic.variance_scaling(1.5, mode, distribution, **HWIO)
    expected = documented(1.5, mode, distribution, 72, 144)
    assert (init.std((3, 3, 8, 16)), init.bound((3, 3, 8, 16))) == pytest.approx(
        expected, rel=1e-12
    )
    init = ic.variance_scaling(1.5, mode, distribution, in_axis=0, out_axis=2, batch_axis=1)
    assert init.std((512, 8, 64)) == pytest.approx(
        documented(1.5, mode, distribution, 512, 64)[0], rel=1e-12
    )


@pytest.mark.parametrize(("stddev", "mean"), [(0.05, 0.0), (0.3, 0.1)])
def test_truncated_normal_of_keras(stddev, mean):
    """keras.initializers.TruncatedNormal draws again what lies beyond two standard deviations
    of the mean, and its std is the parent's."""
    init = ic.truncated_normal(stddev, mean, corrected=False)
    assert init.std((9,)) == pytest.approx(stddev * CUT, rel=1e-12)
    assert init.bound((9,)) == pytest.approx(mean + 2 * stddev, rel=1e-12)
    assert init.law((9,)).mean == pytest.approx(mean, rel=1e-12)


JAX_DRAWS = """
import sys
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
from jax.nn import initializers as init
shape = (3, 3, 40, 60)  # one for all: JAX compiles each shape anew
makers = {name: getattr(init, name)() for name in sys.argv[2:]}
makers["heads"] = init.variance_scaling(
    1.0, "fan_out", "truncated_normal", in_axis=2, out_axis=(1, 3), batch_axis=0)
makers["truncated"] = init.truncated_normal(0.02, lower=-1.0, upper=1.5)
makers["geometric"] = init.variance_scaling(2.0, "fan_geo_avg", "normal")
makers["orthogonal"] = init.orthogonal(2.0)
makers["delta_orthogonal"] = init.delta_orthogonal()
shapes = {"orthogonal": (3, 3, 4, 24), "delta_orthogonal": (3, 4, 5, 8)}
key = jax.random.PRNGKey(7)
draws = {n: np.asarray(make(key, shapes.get(n, shape))) for n, make in makers.items()}
np.savez(sys.argv[1], **draws)
"""


@pytest.fixture(scope="module")
def jax_draws(tmp_path_factory):
    """JAX warns of every fork after its import, so it stays out of this process."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("could not import 'jax'")
    path = tmp_path_factory.mktemp("jax") / "draws.npz"
    ran = subprocess.run(
        [sys.executable, "-c", JAX_DRAWS, str(path), *NAMED],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return dict(np.load(path))


@pytest.mark.parametrize("name", NAMED)
def test_samples_of_jax(jax_draws, name):
    """jax.nn.initializers by name; its truncated normals as ours with distribution=."""
    *_, distribution, make = NAMED[name]
    init = make(**(TRUNCATED if distribution == "truncated_normal" else HWIO))
    theirs = jax_draws[name]
    same_law(theirs, init(theirs.shape, seed=1, name="w"))
    moments_agree(theirs, 0, init.std(theirs.shape))
    assert np.abs(theirs).max() <= init.bound(theirs.shape) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "init"),
    [
        (
            "heads",
            "variance_scaling(1, 'fan_out', 'truncated_normal', "
            "in_axis=2, out_axis=(1, 3), batch_axis=0)",
        ),
        ("geometric", "variance_scaling(2, 'fan_geo_avg', 'normal', in_axis=-2, out_axis=-1)"),
        # JAX counts its bounds in standard deviations
        ("truncated", "truncated_normal(0.02, bounds=(-0.02, 0.03))"),
    ],
)
def test_samples_of_jaxs_variants(jax_draws, name, init):
    theirs, ours = jax_draws[name], ic.initializer(init)
    same_law(theirs, ours(theirs.shape, seed=1, name="w"))
    law = ours.law(theirs.shape)
    moments_agree(theirs, law.mean, law.std)


def test_structures_of_jax(jax_draws):
    """chainer #5485, jax #1615: the same side is orthonormal; jax's rows are our columns."""
    theirs = jax_draws["orthogonal"]
    ours = ic.orthogonal(2, **HWIO)(theirs.shape, seed=1, name="w")
    for w in (theirs, ours):
        q = w.reshape(-1, w.shape[-1]).astype(np.float64)
        np.testing.assert_allclose(q.T @ q, 4 * np.eye(w.shape[-1]), atol=1e-5)
    theirs = jax_draws["delta_orthogonal"]  # (*kernel, in, out)
    ours = ic.delta_orthogonal()((8, 5, 3, 4), seed=1, name="w")
    theirs = theirs.transpose(3, 2, 0, 1)
    assert np.array_equal(theirs != 0, ours != 0)
    for w in (theirs, ours):
        tap = w[:, :, 1, 1].astype(np.float64)
        np.testing.assert_allclose(tap.T @ tap, np.eye(5), atol=1e-5)
