# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Real: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Truncation: TypeAlias = tuple[float, ...]
Source: TypeAlias = (
    npt.NDArray[Any]
    | tuple[int, int, float, float, float, float]
    | tuple[int, int, float, float, float, float, Truncation]
)

CONSTANT: int
UNIFORM: int
NORMAL: int
TRUNCATED_NORMAL: int
FLOAT16: int
BFLOAT16: int
RMS_NORM: int
LAYER_NORM: int
EXACT_WORDS: int
MOMENTS: int
UNIT: int
ROW_STATISTICS: int
KEYS: int
ATTENTION_STATISTICS: int
BY_SCALE: int
LOGIT_SQUARES: int
GRADIENT_SUMS: int

class Chain:
    dtype: str
    norms: tuple[int, ...]
    def __init__(
        self,
        dtype: str,
        seed: int,
        batch: int,
        widths: Sequence[int],
        activations: Sequence[tuple[int, float, float]],
        input: Source,
        weights: Sequence[Source],
        biases: Sequence[Source | None],
        output_gradient: Source | None = None,
        norms: Sequence[int] | None = None,
        residuals: Sequence[float | None] | None = None,
        common: Source | None = None,
    ) -> None: ...

class Gradients:
    def __init__(
        self,
        dtype: str,
        input: npt.NDArray[Any] | None,
        weights: Sequence[npt.NDArray[Any] | None],
        biases: Sequence[npt.NDArray[Any] | None],
    ) -> None: ...

class Attention:
    dtype: str
    def __init__(
        self,
        q: Real,
        k: Real,
        heads: npt.NDArray[np.int64],
        *,
        scale: float,
        softcap: float = 0.0,
        causal: bool = False,
        mask: npt.NDArray[Any] | None = None,
        v: npt.NDArray[Any] | None = None,
    ) -> None: ...

class AttentionGradient:
    dtype: str
    def __init__(
        self,
        forward: Attention,
        dout: npt.NDArray[Any],
        prepared: npt.NDArray[Any],
        q_begin: npt.NDArray[np.int64],
        q_users: npt.NDArray[np.int64],
        k_begin: npt.NDArray[np.int64],
        k_users: npt.NDArray[np.int64],
    ) -> None: ...

class Kernels:
    @property
    def isa(self) -> str: ...
    def philox(self, counter: int, key: int, out: npt.NDArray[np.uint32]) -> None: ...
    def draw(
        self,
        out: npt.NDArray[Any],
        first: int,
        seed: int,
        stream: int,
        kind: int,
        scale: float,
        shift: float,
        low: float,
        high: float,
        truncation: Truncation = (),
        *,
        stride: int = 0,
        half: int = 0,
    ) -> None: ...
    def activate(
        self,
        x: npt.NDArray[Any],
        out: npt.NDArray[Any],
        activation: int,
        parameter: float,
        derivative: bool,
    ) -> None: ...
    def moments(self, x: npt.NDArray[Any], state: npt.NDArray[np.float64]) -> None: ...
    def cosine(self, x: npt.NDArray[Any], batch: int, scales: npt.NDArray[np.float64]) -> float: ...
    def chain_workspace(self, chain: Chain) -> int: ...
    def chain(
        self,
        chain: Chain,
        trial: int,
        n_trials: int,
        states: npt.NDArray[np.float64] | None,
        y: npt.NDArray[Any] | None,
        workspace: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
        inputs: npt.NDArray[np.float64] | None = None,
    ) -> bool: ...
    def chain_input(
        self,
        chain: Chain,
        trial: int,
        shared: npt.NDArray[np.uint8],
        state: npt.NDArray[np.float64] | None = None,
    ) -> None: ...
    def chain_norm(self, chain: Chain, layer: int, shared: npt.NDArray[np.uint8]) -> None: ...
    def chain_columns(
        self,
        chain: Chain,
        trial: int,
        layer: int,
        first: int,
        last: int,
        units: npt.NDArray[np.float64] | None,
        part: npt.NDArray[np.float64] | None,
        y: npt.NDArray[Any] | None,
        shared: npt.NDArray[np.uint8],
        own: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
    ) -> bool: ...
    def chain_cosines(
        self,
        chain: Chain,
        layer: int,
        gradient: bool,
        state: npt.NDArray[np.float64],
        shared: npt.NDArray[np.uint8],
        own: npt.NDArray[np.uint8],
    ) -> None: ...
    def chain_merge(
        self,
        units: npt.NDArray[np.float64],
        batch: int,
        parts: npt.NDArray[np.float64],
        state: npt.NDArray[np.float64],
    ) -> None: ...
    def chain_backward(
        self,
        chain: Chain,
        trial: int,
        n_trials: int,
        states: npt.NDArray[np.float64] | None,
        gradient_states: npt.NDArray[np.float64] | None,
        out: Gradients | None,
        workspace: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
        inputs: npt.NDArray[np.float64] | None = None,
    ) -> bool: ...
    def chain_output_gradient(
        self,
        chain: Chain,
        trial: int,
        state: npt.NDArray[np.float64] | None,
        out: Gradients | None,
        shared: npt.NDArray[np.uint8],
        own: npt.NDArray[np.uint8],
    ) -> None: ...
    def chain_backward_columns(
        self,
        chain: Chain,
        trial: int,
        layer: int,
        first: int,
        last: int,
        units: npt.NDArray[np.float64] | None,
        weight_units: npt.NDArray[np.float64] | None,
        part: npt.NDArray[np.float64] | None,
        out: Gradients | None,
        shared: npt.NDArray[np.uint8],
        own: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
    ) -> bool: ...
    def chain_norm_backward(
        self,
        chain: Chain,
        layer: int,
        state: npt.NDArray[np.float64] | None,
        out: Gradients | None,
        shared: npt.NDArray[np.uint8],
    ) -> None: ...
    def gram_workspace(self, chain: Chain) -> int: ...
    def gram(
        self,
        chain: Chain,
        gradient_streams: npt.NDArray[np.uint64],
        trial: int,
        n_trials: int,
        states: npt.NDArray[np.float64] | None,
        gradient_states: npt.NDArray[np.float64] | None,
        workspace: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
        inputs: npt.NDArray[np.float64] | None = None,
    ) -> bool: ...
    def softmax(
        self,
        z: npt.NDArray[Any],
        p: npt.NDArray[Any] | None,
        statistics: npt.NDArray[np.float64] | None,
        first_row: int,
        scale: float,
        softcap: float,
        keep: npt.NDArray[np.uint8] | None,
        bias: npt.NDArray[Any] | None,
        mask_row: npt.NDArray[np.int64] | None,
        queries: int,
    ) -> None: ...
    def softmax_backward(
        self,
        p: npt.NDArray[Any],
        dp: npt.NDArray[Any],
        dz: npt.NDArray[Any],
        scale: float,
    ) -> None: ...
    def attention_workspace(self, spec: Attention) -> int: ...
    def attention(
        self,
        spec: Attention,
        first: int,
        statistics: npt.NDArray[np.float64],
        output: npt.NDArray[Any] | None,
        workspace: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
    ) -> bool: ...
    def attention_prepare(
        self,
        spec: Attention,
        statistics: npt.NDArray[np.float64],
        output: npt.NDArray[Any],
        dout: npt.NDArray[Any],
        prepared: npt.NDArray[Any],
    ) -> None: ...
    def attention_backward_workspace(self, spec: AttentionGradient) -> int: ...
    def attention_backward(
        self,
        spec: AttentionGradient,
        first: int,
        dx: npt.NDArray[Any],
        dv: npt.NDArray[Any] | None,
        sums: npt.NDArray[np.float64] | None,
        workspace: npt.NDArray[np.uint8],
        cancel: npt.NDArray[np.int32],
    ) -> bool: ...
    def exact_add(
        self, accumulators: npt.NDArray[np.int64], x: npt.NDArray[np.float64]
    ) -> None: ...
    def exact_values(
        self, accumulators: npt.NDArray[np.int64]
    ) -> list[tuple[int, int, int, int]]: ...

def available() -> dict[str, Kernels]: ...
def default() -> Kernels: ...
