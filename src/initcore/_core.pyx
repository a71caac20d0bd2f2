# SPDX-License-Identifier: BSD-3-Clause
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=False, freethreading_compatible=True
"""Bindings: arrays that Python has checked go in, the GIL is released, one kernel runs.

No arithmetic, no policy. Callers pass native-endian, aligned, C-contiguous arrays; a wrong dtype
raises here, sizes are the caller's promise.
"""

import os

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

ctypedef fused real:
    float
    double

CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL = 0, 1, 2, 3
FLOAT16, BFLOAT16 = 1, 2  # what 16-bit outputs are
RMS_NORM, LAYER_NORM = <int>IC_RMS_NORM, <int>IC_LAYER_NORM
EXACT_WORDS = <int>IC_EXACT_WORDS
# float64 words of a running state of moments, and of what a unit brings to it
MOMENTS = <int>(sizeof(ic_moments) // sizeof(double))
UNIT = <int>(sizeof(ic_unit) // sizeof(double))
ROW_STATISTICS = <int>IC_ROW_STATISTICS
KEYS, ATTENTION_STATISTICS = <int>IC_KEYS, <int>IC_ATTENTION_STATISTICS
# columns of the sums of a row of q's gradients, and how many
BY_SCALE, LOGIT_SQUARES = <int>IC_BY_SCALE, <int>IC_LOGIT_SQUARES
GRADIENT_SUMS = <int>IC_GRADIENT_SUMS


cdef int set_law(ic_distribution *law, tuple words) except -1:
    # words: kind, scale, shift, low, high and, needed by a truncated normal alone, truncation
    memset(law, 0, sizeof(ic_distribution))
    law.kind, law.scale, law.shift, law.low, law.high = words[:5]
    if law.kind == TRUNCATED_NORMAL:
        (law.truncation.tail[0], law.truncation.tail[1], law.truncation.slope[0],
         law.truncation.slope[1], law.truncation.spread, law.truncation.centre,
         law.truncation.offset) = words[5]
    return 0


cdef class Chain:
    """A chain of layers as the kernel reads it.

    `input`, each of `weights` and of `biases` is an array (stored) or a tuple
    (stream, kind, scale, shift, low, high[, truncation]) (drawn; trial t adds t to the stream);
    `activations` are (kernel id, parameter, saturation threshold). With an `output_gradient`, which
    is a source like the input, it can also be run backward. `norms`: 0, RMS_NORM or LAYER_NORM a
    layer; `residuals`: the multiplier of a layer's branch, None of a layer without skip; or None.
    `common`, drawn, is a row (n_in) that is added to every row of the input.
    """

    cdef ic_chain chain
    cdef ic_layer *layers
    cdef ic_source common
    cdef list buffers
    cdef readonly str dtype
    cdef readonly tuple norms

    def __cinit__(self, str dtype, uint64_t seed, size_t batch, widths, activations, input,
                  weights, biases, output_gradient=None, norms=None, residuals=None,
                  tuple common=None):
        cdef size_t n_layers = len(widths) - 1
        cdef size_t l
        self.dtype = dtype
        self.norms = (0,) * n_layers if norms is None else tuple(norms)
        self.buffers = []
        self.layers = <ic_layer *>calloc(max(n_layers, 1), sizeof(ic_layer))
        if self.layers is NULL:
            raise MemoryError(f"a chain of {n_layers} layers")
        self.chain.seed = seed
        self.chain.batch = batch
        self.chain.n_layers = n_layers
        self.chain.layers = self.layers
        self.bind(&self.chain.input, input)
        self.chain.backward = output_gradient is not None
        if output_gradient is not None:
            self.bind(&self.chain.output_gradient, output_gradient)
        if common is not None:
            self.bind(&self.common, common)
            self.chain.common = &self.common
        for l in range(n_layers):
            self.layers[l].n_in = widths[l]
            self.layers[l].n_out = widths[l + 1]
            self.layers[l].activation, self.layers[l].parameter, self.layers[l].saturation = (
                activations[l]
            )
            self.bind(&self.layers[l].weight, weights[l])
            self.layers[l].has_bias = biases[l] is not None
            if biases[l] is not None:
                self.bind(&self.layers[l].bias, biases[l])
            self.layers[l].norm = self.norms[l]
            multiplier = None if residuals is None else residuals[l]
            self.layers[l].residual = multiplier is not None
            self.layers[l].multiplier = multiplier or 0.0

    def __dealloc__(self):
        free(self.layers)

    cdef int bind(self, ic_source *source, origin) except -1:
        cdef Py_buffer *buffer
        if isinstance(origin, tuple):
            source.stream = origin[0]
            return set_law(&source.distribution, origin[1:])
        view = memoryview(origin)
        if view.format != ("f" if self.dtype == "float32" else "d"):
            raise TypeError(f"a {self.dtype} chain was given an array of format {view.format!r}")
        self.buffers.append(view)
        buffer = PyMemoryView_GET_BUFFER(view)
        source.data = buffer.buf
        source.row_stride = buffer.strides[0] // buffer.itemsize if buffer.ndim > 1 else 0
        return 0


cdef class Gradients:
    """Where a backward pass writes: `input` (batch, n_in), one of `weights` (n_out, n_in) and one
    of `biases` (n_out) a layer, C-contiguous arrays of the chain's dtype; None where not wanted."""

    cdef ic_gradients gradients
    cdef list buffers

    def __cinit__(self, str dtype, input, weights, biases):
        cdef size_t n_layers = len(weights)
        cdef size_t l
        self.buffers = []
        self.gradients.weights = <void **>calloc(max(n_layers, 1), sizeof(void *))
        self.gradients.biases = <void **>calloc(max(n_layers, 1), sizeof(void *))
        if self.gradients.weights is NULL or self.gradients.biases is NULL:
            raise MemoryError(f"gradients of {n_layers} layers")
        self.gradients.input = self.bind(dtype, input)
        for l in range(n_layers):
            self.gradients.weights[l] = self.bind(dtype, weights[l])
            self.gradients.biases[l] = self.bind(dtype, biases[l])

    def __dealloc__(self):
        free(self.gradients.weights)
        free(self.gradients.biases)

    cdef void *bind(self, str dtype, array) except? NULL:
        if array is None or array.size == 0:
            return NULL
        view = memoryview(array)
        if view.format != ("f" if dtype == "float32" else "d") or view.readonly:
            raise TypeError(f"a {dtype} gradient was given an array of format {view.format!r}")
        if not view.c_contiguous:
            raise TypeError("a gradient was given an array that is not C-contiguous")
        self.buffers.append(view)
        return PyMemoryView_GET_BUFFER(view).buf


cdef const void *bind_matrices(array, str dtype, list buffers) except? NULL:
    # a matrix array (., rows, columns) of the dtype; the buffer stays alive in `buffers`
    if array.dtype.name != dtype:
        raise TypeError(f"attention in {dtype} was given an array of {array.dtype}")
    view = memoryview(array)
    if not view.c_contiguous or view.ndim != 3:
        raise TypeError("attention was given an array that is not C-contiguous with 3 axes")
    buffers.append(view)
    return PyMemoryView_GET_BUFFER(view).buf


cdef class Attention:
    """Heads of attention as the kernels read them.

    q (., queries, d_k), k (., keys, d_k), v (., keys, d_v) or None, of one dtype, float32 or
    float64; heads (n, 3): which matrix of q, of k and v, and of the mask each has; mask (., queries
    or 1, keys or 1), uint8 (non-zero takes part) or of the dtype (added), or None; softcap 0: none.
    """

    cdef ic_attention attention
    cdef list buffers
    cdef readonly str dtype

    def __cinit__(self, q, k, const int64_t[:, ::1] heads, *, double scale, double softcap=0.0,
                  bint causal=False, mask=None, v=None):
        cdef ic_attention *a = &self.attention
        self.buffers = [heads]
        self.dtype = q.dtype.name
        if self.dtype not in ("float32", "float64"):
            raise TypeError(f"q has dtype {self.dtype}: float32 and float64 are accepted")
        a.q = bind_matrices(q, self.dtype, self.buffers)
        a.k = bind_matrices(k, self.dtype, self.buffers)
        a.queries, a.d_k, a.keys = q.shape[1], q.shape[2], k.shape[1]
        a.heads = &heads[0, 0] if heads.shape[0] else NULL
        a.scale, a.softcap, a.causal = scale, softcap, causal
        if v is not None:
            a.v = bind_matrices(v, self.dtype, self.buffers)
            a.d_v = v.shape[2]
        if mask is not None:
            if mask.dtype.name == "uint8":
                a.keep = <const uint8_t *>bind_matrices(mask, "uint8", self.buffers)
            else:
                a.bias = bind_matrices(mask, self.dtype, self.buffers)
            a.mask_size = mask.shape[1] * mask.shape[2]
            a.mask_query = mask.shape[2] if mask.shape[1] > 1 else 0
            a.mask_key = mask.shape[2] > 1


cdef class AttentionGradient:
    """The backward pass of an Attention that has v.

    dout (heads, queries, d_v); prepared (heads, queries, 3): of attention_prepare; q_users: the
    heads by the matrix of q they use, those of matrix m from q_begin[m] to q_begin[m + 1]; k_users
    likewise.
    """

    cdef ic_attention_gradient gradient
    cdef list buffers
    cdef readonly str dtype

    def __cinit__(self, Attention forward not None, dout, prepared, const int64_t[::1] q_begin,
                  const int64_t[::1] q_users, const int64_t[::1] k_begin,
                  const int64_t[::1] k_users):
        cdef ic_attention_gradient *g = &self.gradient
        self.buffers = [forward, q_begin, q_users, k_begin, k_users]
        self.dtype = forward.dtype
        g.heads = forward.attention
        g.dout = bind_matrices(dout, self.dtype, self.buffers)
        g.prepared = bind_matrices(prepared, self.dtype, self.buffers)
        g.q_begin, g.k_begin = &q_begin[0], &k_begin[0]
        g.q_users = &q_users[0] if q_users.shape[0] else NULL
        g.k_users = &k_users[0] if k_users.shape[0] else NULL


cdef int check_fields(Py_ssize_t given, Py_ssize_t accepted) except -1:
    if given != accepted:
        raise ValueError(f"a record of {given} numbers was given: {accepted} is accepted")
    return 0


cdef ic_moments *moments_in(double[:, ::1] state) except? NULL:
    if state is None:
        return NULL
    check_fields(state.shape[1], MOMENTS)
    return <ic_moments *>&state[0, 0]


cdef int check_states(double[:, :, :, ::1] states, Chain chain, uint64_t n_trials,
                      size_t kinds) except -1:
    # what a kernel writes past the end of an array would be silent
    if states is None:
        return 0
    given = states.shape[0], states.shape[1], states.shape[2], states.shape[3]
    accepted = n_trials, chain.chain.n_layers, kinds, MOMENTS
    if given != accepted:
        raise ValueError(f"states has shape {given}: {accepted} is accepted")
    return 0


cdef int check_inputs(double[:, ::1] inputs, uint64_t n_trials) except -1:
    if inputs is None:
        return 0
    given = inputs.shape[0], inputs.shape[1]
    accepted = n_trials, MOMENTS
    if given != accepted:
        raise ValueError(f"inputs has shape {given}: {accepted} is accepted")
    return 0


# (format of the buffer, half) -> which kernel
_DRAWS = {("f", 0): 0, ("d", 0): 1, ("H", FLOAT16): 2, ("H", BFLOAT16): 3}


cdef class Kernels:
    """The kernels of one instruction set (`isa`); csrc/initcore.h has their contracts."""

    cdef const ic_kernels *k

    @property
    def isa(self):
        return self.k.isa.decode()

    def __repr__(self):
        return f"<initcore kernels: {self.isa}>"

    def philox(self, counter, uint64_t key, uint32_t[:, ::1] out):
        """Consecutive Philox4x32-10 blocks from a 128-bit counter into out (blocks, 4)."""
        cdef uint32_t words[4]
        cdef size_t n = out.shape[0]
        for i in range(4):
            words[i] = (counter >> (32 * i)) & 0xFFFFFFFF
        if n:
            with nogil:
                self.k.philox(&out[0, 0], n, words, key)

    def draw(self, out, uint64_t first, uint64_t seed, uint64_t stream, int kind, double scale,
             double shift, double low, double high, truncation=(), *, uint64_t stride=0,
             int half=0):
        """Elements first, first + 1, … of a stream into out (n); or first + r stride, … into row r
        of out (rows, n).

        out: float32, float64, or uint16 with `half` FLOAT16 or BFLOAT16; `truncation` is that of
        initcore.truncation, for TRUNCATED_NORMAL.
        """
        cdef ic_distribution law
        cdef Py_buffer *buffer
        cdef size_t rows = 1
        cdef size_t n
        cdef void *to
        cdef const ic_kernels *k = self.k
        view = memoryview(out)
        code = (view.format, half)
        which = _DRAWS.get(code)
        if which is None or view.readonly or not view.c_contiguous or not 1 <= view.ndim <= 2:
            raise TypeError(
                f"out has format {view.format!r} and half={half}: a writeable C-contiguous array "
                "of one or two axes is accepted, float32, float64, or uint16 with half=1 or 2"
            )
        buffer = PyMemoryView_GET_BUFFER(view)
        n = buffer.shape[buffer.ndim - 1]
        if buffer.ndim == 2:
            rows = buffer.shape[0]
        to = buffer.buf
        set_law(&law, (kind, scale, shift, low, high, truncation))
        cdef int dtype = which
        if not rows or not n:
            return
        with nogil:
            if dtype == 0:
                k.draw_f32(<float *>to, first, n, rows, stride, seed, stream, &law)
            elif dtype == 1:
                k.draw_f64(<double *>to, first, n, rows, stride, seed, stream, &law)
            elif dtype == 2:
                k.draw_f16(<uint16_t *>to, first, n, rows, stride, seed, stream, &law)
            else:
                k.draw_bf16(<uint16_t *>to, first, n, rows, stride, seed, stream, &law)

    def activate(self, const real[::1] x, real[::1] out, int activation, double parameter,
                 bint derivative):
        """phi(x), or phi'(x), elementwise."""
        cdef size_t n = x.shape[0]
        if n:
            with nogil:
                if real is float:
                    self.k.activate_f32(&x[0], &out[0], n, activation, parameter, derivative)
                else:
                    self.k.activate_f64(&x[0], &out[0], n, activation, parameter, derivative)

    def moments(self, const real[:, ::1] x, double[::1] state):
        """Merges the units (rows of x, one value a batch row) into state (MOMENTS), in order."""
        check_fields(state.shape[0], MOMENTS)
        cdef size_t units = x.shape[0]
        cdef size_t batch = x.shape[1]
        if units and batch:
            with nogil:
                if real is float:
                    self.k.moments_f32(&x[0, 0], units, batch, <ic_moments *>&state[0])
                else:
                    self.k.moments_f64(&x[0, 0], units, batch, <ic_moments *>&state[0])

    def cosine(self, const real[:, :, ::1] x, size_t batch, double[::1] scales):
        """The mean cosine of two rows of a batch in panels, x (panels, units, 16); scales (16 a
        panel) is scratch."""
        check_fields(x.shape[2], 16)
        check_fields(scales.shape[0], 16 * x.shape[0])
        cdef size_t units = x.shape[1]
        cdef double found
        if not units or not batch or batch > <size_t>scales.shape[0]:
            raise ValueError(f"{x.shape[0]} panels of {units} units have no batch of {batch}")
        with nogil:
            if real is float:
                found = self.k.cosine_f32(&x[0, 0, 0], units, batch, &scales[0])
            else:
                found = self.k.cosine_f64(&x[0, 0, 0], units, batch, &scales[0])
        return found

    def chain_workspace(self, Chain chain not None):
        """Bytes of scratch that `chain` needs, one a thread."""
        if chain.dtype == "float32":
            return self.k.chain_workspace_f32(&chain.chain)
        return self.k.chain_workspace_f64(&chain.chain)

    def chain(self, Chain chain not None, uint64_t trial, uint64_t n_trials,
              double[:, :, :, ::1] states, y, uint8_t[::1] workspace, const int32_t[::1] cancel,
              double[:, ::1] inputs=None):
        """Trials trial, trial + 1, …; states (n_trials, n_layers, 2, MOMENTS) and y (batch, n_out)
        may be None (y is the last trial's), and so may inputs (n_trials, MOMENTS), of the input.
        False when cancelled."""
        check_states(states, chain, n_trials, 2)
        check_inputs(inputs, n_trials)
        cdef float[:, ::1] y32 = None
        cdef double[:, ::1] y64 = None
        cdef float *out32 = NULL
        cdef double *out64 = NULL
        cdef ic_moments *moments = NULL
        cdef ic_moments *input = NULL
        cdef void *scratch = &workspace[0] if workspace.shape[0] else NULL
        cdef uint64_t t
        cdef int finished = 1
        cdef bint single = chain.dtype == "float32"
        if y is not None and y.size and single:
            y32 = y
            out32 = &y32[0, 0]
        elif y is not None and y.size:
            y64 = y
            out64 = &y64[0, 0]
        with nogil:
            for t in range(n_trials):
                if states is not None:
                    moments = <ic_moments *>&states[t, 0, 0, 0]
                if inputs is not None:
                    input = <ic_moments *>&inputs[t, 0]
                if single:
                    finished = self.k.chain_f32(self.k, &chain.chain, trial + t, input, moments,
                                                out32, scratch, &cancel[0])
                else:
                    finished = self.k.chain_f64(self.k, &chain.chain, trial + t, input, moments,
                                                out64, scratch, &cancel[0])
                if not finished:
                    break
        return bool(finished)

    def chain_input(self, Chain chain not None, uint64_t trial, uint8_t[::1] shared,
                    double[::1] state=None):
        """The first piece of a trial: its input, into the workspace that its threads share, and its
        moments into state (MOMENTS)."""
        if state is not None:
            check_fields(state.shape[0], MOMENTS)
        cdef ic_moments *moments = <ic_moments *>&state[0] if state is not None else NULL
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                self.k.chain_input_f32(self.k, &chain.chain, trial, moments, &shared[0])
            else:
                self.k.chain_input_f64(self.k, &chain.chain, trial, moments, &shared[0])

    def chain_norm(self, Chain chain not None, size_t layer, uint8_t[::1] shared):
        """The norm of a layer's inputs, which comes before its columns; nothing without one."""
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                self.k.chain_norm_f32(&chain.chain, layer, &shared[0])
            else:
                self.k.chain_norm_f64(&chain.chain, layer, &shared[0])

    def chain_columns(self, Chain chain not None, uint64_t trial, size_t layer, size_t first,
                      size_t last, double[:, :, ::1] units, double[:, ::1] part, y,
                      uint8_t[::1] shared, uint8_t[::1] own, const int32_t[::1] cancel):
        """Outputs first … last − 1 of a layer; units (n_out, 2, UNIT), part (2, MOMENTS) and y
        (batch, n_out of the last layer) may be None, part is written. False when cancelled."""
        if units is not None:
            check_fields(units.shape[2], UNIT)
        cdef float[:, ::1] y32 = None
        cdef double[:, ::1] y64 = None
        cdef float *out32 = NULL
        cdef double *out64 = NULL
        cdef ic_unit *found = <ic_unit *>&units[0, 0, 0] if units is not None else NULL
        cdef ic_moments *moments = moments_in(part)
        cdef int finished
        cdef bint single = chain.dtype == "float32"
        if y is not None and y.size and single:
            y32 = y
            out32 = &y32[0, 0]
        elif y is not None and y.size:
            y64 = y
            out64 = &y64[0, 0]
        with nogil:
            if single:
                finished = self.k.chain_columns_f32(
                    self.k, &chain.chain, trial, layer, first, last, found, moments, out32,
                    &shared[0], &own[0], &cancel[0])
            else:
                finished = self.k.chain_columns_f64(
                    self.k, &chain.chain, trial, layer, first, last, found, moments, out64,
                    &shared[0], &own[0], &cancel[0])
        return bool(finished)

    def chain_merge(self, const double[:, :, ::1] units, size_t batch,
                    const double[:, :, ::1] parts, double[:, ::1] state):
        """Into state (states, MOMENTS), zeros before, units (n, states, UNIT) of `batch` values
        each and the parts (n_parts, states, MOMENTS) of the ranges they came in; 1 or 2 states."""
        check_fields(units.shape[2], UNIT)
        check_fields(parts.shape[2], MOMENTS)
        check_fields(state.shape[1], MOMENTS)
        cdef size_t n = units.shape[0]
        cdef size_t n_parts = parts.shape[0]
        cdef int states = <int>units.shape[1]
        if n and batch:
            with nogil:
                self.k.chain_merge(<const ic_unit *>&units[0, 0, 0], states, n, batch,
                                   <const ic_moments *>&parts[0, 0, 0] if n_parts else NULL,
                                   n_parts, <ic_moments *>&state[0, 0])

    def chain_cosines(self, Chain chain not None, size_t layer, bint gradient,
                      double[:, ::1] state, uint8_t[::1] shared, uint8_t[::1] own):
        """Into state (2, MOMENTS), the cosines of a layer whose columns or, of the gradients by its
        activation and pre-activation, those of the layer above have just been computed."""
        check_fields(state.shape[1], MOMENTS)
        cdef ic_moments *moments = <ic_moments *>&state[0, 0]
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                self.k.chain_cosines_f32(&chain.chain, layer, gradient, moments, &shared[0],
                                         &own[0])
            else:
                self.k.chain_cosines_f64(&chain.chain, layer, gradient, moments, &shared[0],
                                         &own[0])

    def chain_backward(self, Chain chain not None, uint64_t trial, uint64_t n_trials,
                       double[:, :, :, ::1] states, double[:, :, :, ::1] gradient_states,
                       Gradients out, uint8_t[::1] workspace, const int32_t[::1] cancel,
                       double[:, ::1] inputs=None):
        """Trials trial, trial + 1, … forward and backward; states (n_trials, n_layers, 2,
        MOMENTS), gradient_states (n_trials, n_layers, 3, MOMENTS), out (the last trial's) and
        inputs as in `chain` may be None. False when cancelled."""
        check_states(states, chain, n_trials, 2)
        check_states(gradient_states, chain, n_trials, 3)
        check_inputs(inputs, n_trials)
        cdef ic_moments *moments = NULL
        cdef ic_moments *gradients = NULL
        cdef ic_moments *input = NULL
        cdef const ic_gradients *to = &out.gradients if out is not None else NULL
        cdef uint64_t t
        cdef int finished = 1
        cdef bint single = chain.dtype == "float32"
        with nogil:
            for t in range(n_trials):
                if states is not None:
                    moments = <ic_moments *>&states[t, 0, 0, 0]
                if inputs is not None:
                    input = <ic_moments *>&inputs[t, 0]
                if gradient_states is not None:
                    gradients = <ic_moments *>&gradient_states[t, 0, 0, 0]
                if single:
                    finished = self.k.chain_backward_f32(
                        self.k, &chain.chain, trial + t, input, moments, gradients, to,
                        &workspace[0], &cancel[0])
                else:
                    finished = self.k.chain_backward_f64(
                        self.k, &chain.chain, trial + t, input, moments, gradients, to,
                        &workspace[0], &cancel[0])
                if not finished:
                    break
        return bool(finished)

    def chain_output_gradient(self, Chain chain not None, uint64_t trial, double[:, ::1] state,
                              Gradients out, uint8_t[::1] shared, uint8_t[::1] own):
        """The first piece of a backward pass; state (2, MOMENTS), of the last layer, or None."""
        cdef ic_moments *moments = moments_in(state)
        cdef const ic_gradients *to = &out.gradients if out is not None else NULL
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                self.k.chain_output_gradient_f32(self.k, &chain.chain, trial, moments, to,
                                                 &shared[0], &own[0])
            else:
                self.k.chain_output_gradient_f64(self.k, &chain.chain, trial, moments, to,
                                                 &shared[0], &own[0])

    def chain_backward_columns(self, Chain chain not None, uint64_t trial, size_t layer,
                               size_t first, size_t last, double[:, :, ::1] units,
                               double[:, :, ::1] weight_units, double[:, ::1] part, Gradients out,
                               uint8_t[::1] shared, uint8_t[::1] own, const int32_t[::1] cancel):
        """Inputs first … last − 1 of a layer; units (n_in, 2, UNIT), weight_units (n_in, 1, UNIT)
        and part (2, MOMENTS) may be None, part is written. False when cancelled."""
        if units is not None:
            check_fields(units.shape[2], UNIT)
        if weight_units is not None:
            check_fields(weight_units.shape[2], UNIT)
        cdef ic_unit *found = <ic_unit *>&units[0, 0, 0] if units is not None else NULL
        cdef ic_unit *squares = (
            <ic_unit *>&weight_units[0, 0, 0] if weight_units is not None else NULL
        )
        cdef ic_moments *moments = moments_in(part)
        cdef const ic_gradients *to = &out.gradients if out is not None else NULL
        cdef int finished
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                finished = self.k.chain_backward_columns_f32(
                    self.k, &chain.chain, trial, layer, first, last, found, squares, moments, to,
                    &shared[0], &own[0], &cancel[0])
            else:
                finished = self.k.chain_backward_columns_f64(
                    self.k, &chain.chain, trial, layer, first, last, found, squares, moments, to,
                    &shared[0], &own[0], &cancel[0])
        return bool(finished)

    def chain_norm_backward(self, Chain chain not None, size_t layer, double[:, ::1] state,
                            Gradients out, uint8_t[::1] shared):
        """Of a layer with a norm, after its columns: the gradients of its inputs and of the
        pre-activations below, whose moments go into state (2, MOMENTS) if not None; nothing without
        a norm."""
        cdef ic_moments *moments = moments_in(state)
        cdef const ic_gradients *to = &out.gradients if out is not None else NULL
        cdef bint single = chain.dtype == "float32"
        with nogil:
            if single:
                self.k.chain_norm_backward_f32(&chain.chain, layer, moments, to, &shared[0])
            else:
                self.k.chain_norm_backward_f64(&chain.chain, layer, moments, to, &shared[0])

    def gram_workspace(self, Chain chain not None):
        """Bytes of scratch that `gram` needs, one a thread."""
        if chain.dtype == "float32":
            return self.k.gram_workspace_f32(&chain.chain)
        return self.k.gram_workspace_f64(&chain.chain)

    def gram(self, Chain chain not None, const uint64_t[::1] gradient_streams, uint64_t trial,
             uint64_t n_trials, double[:, :, :, ::1] states,
             double[:, :, :, ::1] gradient_states, uint8_t[::1] workspace,
             const int32_t[::1] cancel, double[:, ::1] inputs=None):
        """Trials trial, trial + 1, … of a chain that draws no weights; states (n_trials, n_layers,
        2, MOMENTS) and, of a chain with an output gradient, gradient_states (n_trials, n_layers, 3,
        MOMENTS), or None, as may be inputs, (n_trials, MOMENTS). False when cancelled."""
        check_states(states, chain, n_trials, 2)
        check_states(gradient_states, chain, n_trials, 3)
        check_inputs(inputs, n_trials)
        cdef ic_moments *input = NULL
        cdef ic_moments *moments = NULL
        cdef ic_moments *gradients = NULL
        cdef uint64_t t
        cdef int finished = 1
        cdef bint single = chain.dtype == "float32"
        with nogil:
            for t in range(n_trials):
                if inputs is not None:
                    input = <ic_moments *>&inputs[t, 0]
                if states is not None:
                    moments = <ic_moments *>&states[t, 0, 0, 0]
                if gradient_states is not None:
                    gradients = <ic_moments *>&gradient_states[t, 0, 0, 0]
                if single:
                    finished = self.k.gram_f32(self.k, &chain.chain, &gradient_streams[0],
                                               trial + t, input, moments, gradients,
                                               &workspace[0], &cancel[0])
                else:
                    finished = self.k.gram_f64(self.k, &chain.chain, &gradient_streams[0],
                                               trial + t, input, moments, gradients,
                                               &workspace[0], &cancel[0])
                if not finished:
                    break
        return bool(finished)

    def softmax(self, const real[:, ::1] z, real[:, ::1] p, double[:, ::1] statistics,
                size_t first_row, double scale, double softcap, const uint8_t[:, ::1] keep,
                const real[:, ::1] bias, const int64_t[::1] mask_row, size_t queries):
        """Softmax of each row of z into p (may be z, or None) and its statistics (or None)."""
        cdef ic_softmax_rows rows
        cdef real *out = NULL
        cdef double *stats = NULL
        if z.shape[0] == 0 or z.shape[1] == 0:
            return
        rows.rows = z.shape[0]
        rows.n = z.shape[1]
        rows.scale = scale
        rows.softcap = softcap
        rows.keep = &keep[0, 0] if keep is not None else NULL
        rows.bias = <const void *>&bias[0, 0] if bias is not None else NULL
        rows.mask_row = &mask_row[0] if mask_row is not None else NULL
        rows.queries = queries
        rows.first_row = first_row
        if p is not None:
            out = &p[0, 0]
        if statistics is not None:
            stats = &statistics[0, 0]
        with nogil:
            if real is float:
                self.k.softmax_f32(&z[0, 0], out, stats, &rows)
            else:
                self.k.softmax_f64(&z[0, 0], out, stats, &rows)

    def softmax_backward(self, const real[:, ::1] p, const real[:, ::1] dp, real[:, ::1] dz,
                         double scale):
        """scale * p * (dp - sum(dp * p)) row by row; dz may be p or dp."""
        cdef size_t rows = p.shape[0]
        cdef size_t n = p.shape[1]
        if rows and n:
            with nogil:
                if real is float:
                    self.k.softmax_backward_f32(&p[0, 0], &dp[0, 0], &dz[0, 0], rows, n, scale)
                else:
                    self.k.softmax_backward_f64(&p[0, 0], &dp[0, 0], &dz[0, 0], rows, n, scale)

    def attention_workspace(self, Attention spec not None):
        """Bytes of scratch that `spec` needs, one a thread."""
        if spec.dtype == "float32":
            return self.k.attention_workspace_f32(&spec.attention)
        return self.k.attention_workspace_f64(&spec.attention)

    def attention(self, Attention spec not None, size_t first, double[:, ::1] statistics, output,
                  uint8_t[::1] workspace, const int32_t[::1] cancel):
        """Statistics (rows, ATTENTION_STATISTICS) and output (rows, d_v), or None, of rows first,
        first + 1, … False when cancelled."""
        cdef float[:, ::1] out32 = None
        cdef double[:, ::1] out64 = None
        cdef size_t last = first + statistics.shape[0]
        cdef bint single = spec.dtype == "float32"
        cdef int finished = 1
        if output is not None and single:
            out32 = output
        elif output is not None:
            out64 = output
        if last > first:
            with nogil:
                if single:
                    finished = self.k.attention_f32(
                        &spec.attention, first, last, &statistics[0, 0],
                        NULL if out32 is None else &out32[0, 0], &workspace[0], &cancel[0])
                else:
                    finished = self.k.attention_f64(
                        &spec.attention, first, last, &statistics[0, 0],
                        NULL if out64 is None else &out64[0, 0], &workspace[0], &cancel[0])
        return bool(finished)

    def attention_prepare(self, Attention spec not None, const double[:, ::1] statistics,
                          const real[:, ::1] output, const real[:, ::1] dout,
                          real[:, ::1] prepared):
        """What attention_backward wants of rows of `attention` and dout: prepared (rows, 3)."""
        cdef size_t rows = statistics.shape[0]
        if rows:
            with nogil:
                if real is float:
                    self.k.attention_prepare_f32(&spec.attention, &statistics[0, 0],
                                                 &output[0, 0], &dout[0, 0], rows,
                                                 &prepared[0, 0])
                else:
                    self.k.attention_prepare_f64(&spec.attention, &statistics[0, 0],
                                                 &output[0, 0], &dout[0, 0], rows,
                                                 &prepared[0, 0])

    def attention_backward_workspace(self, AttentionGradient spec not None):
        """Bytes of scratch that `spec` needs, one a thread."""
        if spec.dtype == "float32":
            return self.k.attention_backward_workspace_f32(&spec.gradient)
        return self.k.attention_backward_workspace_f64(&spec.gradient)

    def attention_backward(self, AttentionGradient spec not None, size_t first,
                           real[:, ::1] dx, real[:, ::1] dv, double[:, ::1] sums,
                           uint8_t[::1] workspace, const int32_t[::1] cancel):
        """Of rows first, first + 1, … of the matrices of q: dx (rows, d_k) and sums (rows,
        GRADIENT_SUMS), with dv None; of k and v: dx (rows, d_k) and dv (rows, d_v), with sums None.
        False when cancelled."""
        cdef size_t last = first + dx.shape[0]
        cdef bint keys = dv is not None
        cdef double *of_rows = NULL if sums is None else &sums[0, 0]
        cdef real *by_v = NULL if dv is None else &dv[0, 0]
        cdef int finished = 1
        if last > first:
            with nogil:
                if real is float:
                    finished = self.k.attention_backward_f32(
                        &spec.gradient, keys, first, last, &dx[0, 0], by_v, of_rows,
                        &workspace[0], &cancel[0])
                else:
                    finished = self.k.attention_backward_f64(
                        &spec.gradient, keys, first, last, &dx[0, 0], by_v, of_rows,
                        &workspace[0], &cancel[0])
        return bool(finished)

    def exact_add(self, int64_t[:, ::1] accumulators, const double[:, ::1] x):
        """Adds x[:, j] and its exact squares to accumulator j, (m, EXACT_WORDS)."""
        cdef size_t t = x.shape[0]
        cdef size_t m = x.shape[1]
        if t and m:
            with nogil:
                self.k.exact_add(&accumulators[0, 0], &x[0, 0], t, m)

    def exact_values(self, int64_t[:, ::1] accumulators):
        """(count, nonfinite, sum, sum of squares) of each, exact integers in units of 2^-1074 and
        2^-2148."""
        cdef size_t m = accumulators.shape[0]
        if m:
            with nogil:
                self.k.exact_carry(&accumulators[0, 0], m)
        return [
            (
                accumulators[i, 0],
                accumulators[i, 1],
                _integer(&accumulators[i, 3], IC_EXACT_SUM_WORDS),
                _integer(&accumulators[i, 3 + IC_EXACT_SUM_WORDS], IC_EXACT_SQUARE_WORDS),
            )
            for i in range(m)
        ]


cdef _integer(const int64_t *digits, size_t n):
    # after exact_carry all digits but the signed top one are in [0, 2^32)
    cdef uint8_t words[4 * IC_EXACT_SQUARE_WORDS]
    cdef size_t i, first = 0, last = n - 1
    cdef int byte
    while first < last and digits[first] == 0:  # most are: doubles come from a narrow range
        first += 1
    while last > first and digits[last - 1] == 0:
        last -= 1
    for i in range(first, last):
        for byte in range(4):
            words[4 * (i - first) + byte] = <uint8_t>(digits[i] >> (8 * byte))
    low = int.from_bytes(words[:4 * (last - first)], "little") << (32 * first)
    return low + (<object>digits[n - 1] << (32 * (n - 1))) if digits[n - 1] else low


cdef dict _found():
    cdef const ic_kernels *const *list_ = ic_available()
    cdef Kernels kernels
    found = {}
    while list_[0] is not NULL:
        kernels = Kernels.__new__(Kernels)
        kernels.k = list_[0]
        found[kernels.isa] = kernels
        list_ += 1
    return found


_available = _found()
_wanted = os.environ.get("INITCORE_ISA", "").strip().lower() or next(iter(_available))


def available():
    """The instruction sets this machine runs, best first: a dict of name and Kernels."""
    return dict(_available)


def default():
    """The best kernels, or those that INITCORE_ISA named at import."""
    kernels = _available.get(_wanted)
    if kernels is None:
        raise ValueError(f"INITCORE_ISA={_wanted!r}: {', '.join(_available)} is accepted here")
    return kernels
