/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of run_kernels.c that exists for float32 and for float64: included with REAL, WORD (the
 * unsigned integer of its size) and T (the suffix of its names). */

static REAL *T(inputs)(size_t n) {
    REAL *x = buffer(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (REAL)random_input();
    return x;
}

/* Every output must have been written. */
static void T(take)(const REAL *x, size_t n) {
    uint64_t digest = n;
    WORD unwritten;
    memset(&unwritten, UNWRITTEN, sizeof unwritten);
    for (size_t i = 0; i < n; i++) {
        WORD word;
        memcpy(&word, x + i, sizeof word);
        if (word == unwritten) fail("an output was not written");
        digest = mix(digest, x[i] == x[i] ? word : 0x7FC0);
    }
    record(digest);
}

static void T(take_moments)(const ic_moments *m, size_t n) {
    uint64_t digest = n;
    for (size_t i = 0; i < n; i++) {
        const double fields[] = {m[i].count, m[i].mean, m[i].m2, m[i].abs_max, m[i].zeros,
                                 m[i].saturated, m[i].nonfinite, m[i].m3, m[i].m4, m[i].within,
                                 m[i].dead, m[i].overflows, m[i].cosine};
        for (size_t f = 0; f < COUNT(fields); f++) {
            uint64_t word;
            memcpy(&word, fields + f, sizeof word);
            digest = mix(digest, fields[f] == fields[f] ? word : 0x7FC0);
        }
    }
    record(digest);
}

static void T(run_draw)(const ic_kernels *k) {
    static const uint64_t firsts[] = {0, 1, 63, 0xFFFFFFFFFu};
    for (size_t d = 0; d < COUNT(DISTRIBUTIONS); d++)
        for (size_t f = 0; f < COUNT(firsts); f++)
            for (size_t i = 0; i < COUNT(LENGTHS); i++) {
                const size_t rows = i % 3 + 1, n = rows * LENGTHS[i];
                REAL *out = buffer(n, sizeof *out);
                name("draw %zu bytes law %zu first %" PRIu64 " n %zu rows %zu", sizeof *out, d,
                     firsts[f], LENGTHS[i], rows);
                k->T(draw)(out, firsts[f], LENGTHS[i], rows, 1000, 7, 11, DISTRIBUTIONS + d);
                T(take)(out, n);
                free(out);
            }
}

static void T(run_activate)(const ic_kernels *k) {
    static const REAL special[] = {0, (REAL)-0.0, 1e-30f, -1e30f, 1e30f, 100, -100, (REAL)NAN,
                                   (REAL)INFINITY, (REAL)-INFINITY};
    for (int activation = 0; activation < IC_ACTIVATIONS; activation++)
        for (int derivative = 0; derivative < 2; derivative++)
            for (size_t i = 0; i < COUNT(LENGTHS); i++) {
                const size_t n = LENGTHS[i];
                REAL *x = T(inputs)(n), *out = buffer(n, sizeof *out);
                for (size_t j = 0; j < n && j < COUNT(special); j++) x[j] = special[j];
                name("activate %zu bytes activation %d derivative %d n %zu", sizeof *x, activation,
                     derivative, n);
                k->T(activate)(x, out, n, activation, 0.3, derivative);
                T(take)(out, n);
                k->T(activate)(x, x, n, activation, 0.3, derivative);
                if (n && memcmp(x, out, n * sizeof *x)) fail("in place differs");
                free(x);
                free(out);
            }
}

static void T(run_moments)(const ic_kernels *k) {
    for (size_t units = 0; units < 5; units++)
        for (size_t i = 0; i < COUNT(WIDTHS); i++) {
            const size_t batch = WIDTHS[i];
            REAL *x = T(inputs)(units * batch);
            ic_moments state = {0};
            name("moments %zu bytes units %zu batch %zu", sizeof *x, units, batch);
            k->T(moments)(x, units, batch, &state);
            if (units > 1) x[batch] = (REAL)NAN;
            k->T(moments)(x, units, batch, &state);
            T(take_moments)(&state, 1);
            free(x);
            const size_t panels = (batch + 15) / 16;
            double *scales = buffer(16 * panels, sizeof *scales);
            x = T(inputs)(16 * panels * units);
            const double cosine = k->T(cosine)(x, units, batch, scales);
            take_f64(&cosine, 1);
            free(x);
            free(scales);
        }
}

/* A matrix whose last row ends the allocation; the values between rows are never to be read. */
static REAL *T(matrix)(size_t rows, size_t columns, size_t stride) {
    const size_t n = (rows - 1) * stride + columns;
    REAL *x = T(inputs)(n);
    for (size_t i = 0; i < n; i++) x[i] = i % stride < columns ? x[i] / 4 : (REAL)NAN;
    return x;
}

enum { T(LAYERS) = 3 };
static void T(run_backward_of)(const ic_kernels *k, ic_chain *chain) {
    chain->backward = 1;
    const size_t batch = chain->batch, inputs = batch * chain->layers[0].n_in;
    char *workspace = buffer(k->T(chain_workspace)(chain) + 1, 1);
    ic_moments input, moments[2 * T(LAYERS)], gradients[3 * T(LAYERS)];
    void *weights[T(LAYERS)], *biases[T(LAYERS)];
    const ic_gradients out = {buffer(inputs, sizeof(REAL)), weights, biases};
    int32_t cancel = 0;
    for (size_t l = 0; l < T(LAYERS); l++) {
        weights[l] = buffer(chain->layers[l].n_in * chain->layers[l].n_out, sizeof(REAL));
        biases[l] = buffer(chain->layers[l].n_out, sizeof(REAL));
    }
    if (!k->T(chain_backward)(k, chain, 5, &input, moments, gradients, &out, workspace + 1,
                              &cancel))
        fail("cancelled");
    T(take_moments)(&input, 1);
    T(take_moments)(moments, COUNT(moments));
    T(take_moments)(gradients, COUNT(gradients));
    T(take)(out.input, inputs);
    for (size_t l = 0; l < T(LAYERS); l++) {
        T(take)(weights[l], chain->layers[l].n_in * chain->layers[l].n_out);
        T(take)(biases[l], chain->layers[l].n_out);
        free(weights[l]);
        free(biases[l]);
    }
    if (!k->T(chain_backward)(k, chain, 5, NULL, NULL, gradients, NULL, workspace + 1, &cancel))
        fail("cancelled");
    T(take_moments)(gradients, COUNT(gradients));
    cancel = 1;
    if (k->T(chain_backward)(k, chain, 5, &input, moments, gradients, NULL, workspace + 1, &cancel))
        fail("not cancelled");
    free(out.input);
    free(workspace);
}

/* The same chain by its Gram matrices, its weights aside. */
static void T(run_gram_of)(const ic_kernels *k, ic_chain *chain) {
    static const uint64_t streams[T(LAYERS)] = {30, 31, 32};
    ic_moments input, moments[2 * T(LAYERS)], gradients[3 * T(LAYERS)];
    for (chain->backward = 0; chain->backward < 2; chain->backward++) {
        char *workspace = buffer(k->T(gram_workspace)(chain) + 1, 1);
        int32_t cancel = 0;
        if (!k->T(gram)(k, chain, streams, 5, &input, moments,
                        chain->backward ? gradients : NULL, workspace + 1, &cancel))
            fail("cancelled");
        T(take_moments)(&input, 1);
        T(take_moments)(moments, COUNT(moments));
        if (chain->backward) T(take_moments)(gradients, COUNT(gradients));
        if (!k->T(gram)(k, chain, streams, 5, NULL, NULL, NULL, workspace + 1, &cancel))
            fail("cancelled");
        cancel = 1;
        if (k->T(gram)(k, chain, streams, 5, &input, moments, NULL, workspace + 1, &cancel))
            fail("not cancelled");
        free(workspace);
    }
}

static void T(run_chain_of)(const ic_kernels *k, size_t n_in, size_t width, size_t batch,
                            int stored, int activation) {
    const ic_distribution normal = {.kind = IC_NORMAL, .scale = 0.5};
    const int shaped = activation % 2; /* with norms and residual branches */
    ic_layer layers[T(LAYERS)];
    REAL *arrays[2 * T(LAYERS) + 1] = {NULL};
    ic_chain chain = {.seed = 42, .batch = batch, .n_layers = T(LAYERS), .layers = layers,
                      .input = {NULL, 0, normal, 1}, .output_gradient = {NULL, 0, normal, 20}};
    const ic_source common = {NULL, 0, normal, 21};
    if (!stored && batch % 2) chain.common = &common;
    if (stored) {
        arrays[0] = T(matrix)(batch, n_in, n_in + 2);
        chain.input.data = arrays[0];
        chain.input.row_stride = (ptrdiff_t)n_in + 2;
    }
    for (size_t l = 0; l < T(LAYERS); l++) {
        const size_t from = l ? width : n_in, to = l + 1 < T(LAYERS) ? width : n_in;
        const size_t stride = from + 3 * (l & 1);
        layers[l] = (ic_layer){from, to, {NULL, 0, normal, 2 + l}, {NULL, 0, normal, 9 + l},
                               l != 1, (activation + (int)l) % IC_ACTIVATIONS, 0.3, 0.05,
                               shaped ? (activation / 2 + (int)l) % 3 : IC_NO_NORM,
                               shaped && from == to, 0.7};
        if (!stored) continue;
        layers[l].weight.data = arrays[1 + 2 * l] = T(matrix)(to, from, stride);
        layers[l].weight.row_stride = (ptrdiff_t)stride;
        layers[l].bias.data = arrays[2 + 2 * l] = T(matrix)(1, to, to);
        layers[l].bias.row_stride = (ptrdiff_t)to;
    }
    const size_t bytes = k->T(chain_workspace)(&chain);
    char *workspace = buffer(bytes + 1, 1);
    REAL *y = buffer(batch * n_in, sizeof *y);
    ic_moments input, moments[2 * T(LAYERS)];
    int32_t cancel = 0;
    name("chain %zu bytes %zu -> %zu batch %zu stored %d activation %d", sizeof *y, n_in, width,
         batch, stored, activation);
    if (!k->T(chain)(k, &chain, 5, &input, moments, y, workspace + 1, &cancel)) fail("cancelled");
    T(take)(y, batch * n_in);
    T(take_moments)(&input, 1);
    T(take_moments)(moments, COUNT(moments));
    if (!k->T(chain)(k, &chain, 5, NULL, NULL, y, workspace + 1, &cancel)) fail("cancelled");
    T(take)(y, batch * n_in);
    if (!k->T(chain)(k, &chain, 5, &input, moments, NULL, workspace + 1, &cancel))
        fail("cancelled");
    T(take_moments)(&input, 1);
    T(take_moments)(moments, COUNT(moments));
    cancel = 1;
    if (k->T(chain)(k, &chain, 5, &input, moments, y, workspace + 1, &cancel))
        fail("not cancelled");
    free(workspace);
    T(run_backward_of)(k, &chain);
    T(run_gram_of)(k, &chain);
    for (size_t i = 0; i < COUNT(arrays); i++) free(arrays[i]);
    free(y);
}

static void T(run_chain)(const ic_kernels *k) {
    int activation = 0;
    for (size_t i = 0; i < COUNT(WIDTHS); i++)
        for (size_t b = 0; b < COUNT(WIDTHS); b++)
            for (int stored = 0; stored < 2; stored++)
                T(run_chain_of)(k, WIDTHS[(i + b) % COUNT(WIDTHS)], WIDTHS[i], WIDTHS[b], stored,
                                activation++ % IC_ACTIVATIONS);
    T(run_chain_of)(k, 3, 300, 20, 0, IC_RELU); /* more than one slab */
    T(run_chain_of)(k, 3, 300, 20, 1, IC_RELU);
    T(run_chain_of)(k, 3, 300, 1, 0, IC_RELU); /* more than a block of one input */
}

static void T(run_softmax_of)(const ic_kernels *k, size_t rows, size_t n, int variant) {
    const size_t masks = 3;
    REAL *z = T(inputs)(rows * n), *p = buffer(rows * n, sizeof *p);
    REAL *bias = T(inputs)(masks * n);
    double *statistics = buffer(rows * IC_ROW_STATISTICS, sizeof *statistics);
    uint8_t *keep = buffer(masks * n, 1);
    int64_t *mask_row = buffer(rows, sizeof *mask_row);
    ic_softmax_rows options = {.rows = rows, .n = n, .scale = variant & 1 ? -0.5 : 0.25};
    for (size_t i = 0; i < masks * n; i++) {
        keep[i] = i / n == 1 ? 0 : random_input() > -2;
        if (i % 5 == 0) bias[i] = (REAL)-INFINITY;
    }
    for (size_t r = 0; r < rows; r++) mask_row[r] = (int64_t)((r + 1) % masks);
    if (rows > 3 && n) {
        z[n + n / 2] = (REAL)INFINITY;
        z[2 * n + n - 1] = (REAL)NAN;
    }
    if (variant & 2) options.softcap = 3;
    if (variant & 4) options.keep = keep;
    if (variant & 8) options.bias = bias;
    if (variant & 12) options.mask_row = mask_row;
    if (variant & 16) options.queries = 4;
    options.first_row = 2;

    name("softmax %zu bytes rows %zu n %zu variant %d", sizeof *z, rows, n, variant);
    k->T(softmax)(z, p, statistics, &options);
    T(take)(p, rows * n);
    take_f64(statistics, rows * IC_ROW_STATISTICS);
    k->T(softmax)(z, NULL, statistics, &options);
    take_f64(statistics, rows * IC_ROW_STATISTICS);
    k->T(softmax)(z, z, NULL, &options);
    T(take)(z, rows * n);
    k->T(softmax_backward)(p, z, p, rows, n, 0.5);
    T(take)(p, rows * n);
    free(z);
    free(p);
    free(bias);
    free(statistics);
    free(keep);
    free(mask_row);
}

static void T(run_softmax)(const ic_kernels *k) {
    for (int variant = 0; variant < 32; variant++)
        for (size_t i = 0; i < COUNT(LENGTHS); i++)
            T(run_softmax_of)(k, variant % 4 ? 5 : 17, LENGTHS[i], variant);
    T(run_softmax_of)(k, 0, 5, 0);
}

static void T(run_attention_of)(const ic_kernels *k, size_t queries, size_t keys, size_t d,
                                int variant) {
    static const int64_t heads[][3] = {{0, 0, 1}, {1, 0, 0}, {1, 0, 2}};
    static const int64_t q_begin[] = {0, 1, 3}, k_begin[] = {0, 3}, users[] = {0, 1, 2};
    enum { HEADS = 3, MATRICES = 2, D_V = 5, MASKS = 3 };
    const size_t rows = HEADS * queries;
    REAL *q = T(inputs)(MATRICES * queries * d), *keyed = T(inputs)(keys * d);
    REAL *v = T(inputs)(keys * D_V), *dout = T(inputs)(rows * D_V);
    REAL *bias = T(inputs)(MASKS * queries * keys);
    uint8_t *keep = buffer(MASKS * keys, 1);
    double *statistics = buffer(rows * IC_ATTENTION_STATISTICS, sizeof *statistics);
    double *sums = buffer(MATRICES * queries * IC_GRADIENT_SUMS, sizeof *sums);
    REAL *output = buffer(rows * D_V, sizeof *output), *prepared = buffer(rows * 3, sizeof *output);
    REAL *dq = buffer(MATRICES * queries * d, sizeof *dq), *dk = buffer(keys * d, sizeof *dk);
    REAL *dv = buffer(keys * D_V, sizeof *dv);
    int32_t cancel = 0;
    ic_attention a = {.queries = queries, .keys = keys, .d_k = d, .heads = heads[0], .q = q,
                      .k = keyed, .scale = variant & 1 ? -0.5 : 0.25, .causal = variant & 16};
    for (size_t i = 0; i < MASKS * keys; i++) keep[i] = i / keys == 1 ? 0 : random_input() > -2;
    for (size_t i = 0; i < MASKS * queries * keys; i += 5) bias[i] = (REAL)-INFINITY;
    if (queries > 3) q[3 * d] = (REAL)NAN;
    if (variant & 2) a.softcap = 3;
    if (variant & 4) { /* of keys alone */
        a.keep = keep;
        a.mask_size = (ptrdiff_t)keys;
        a.mask_key = 1;
    }
    if (variant & 8) {
        a.keep = NULL;
        a.bias = bias;
        a.mask_size = (ptrdiff_t)(queries * keys);
        a.mask_query = (ptrdiff_t)keys;
        a.mask_key = 1;
    }
    name("attention %zu bytes queries %zu keys %zu d %zu variant %d", sizeof *q, queries, keys, d,
         variant);
    char *workspace = buffer(k->T(attention_workspace)(&a) + 1, 1);
    if (!k->T(attention)(&a, 0, rows, statistics, NULL, workspace + 1, &cancel)) fail("cancelled");
    take_f64(statistics, rows * IC_ATTENTION_STATISTICS);
    free(workspace);
    a.d_v = D_V;
    a.v = v;
    workspace = buffer(k->T(attention_workspace)(&a) + 1, 1);
    if (!k->T(attention)(&a, 0, rows, statistics, output, workspace + 1, &cancel))
        fail("cancelled");
    take_f64(statistics, rows * IC_ATTENTION_STATISTICS);
    T(take)(output, rows * D_V);
    cancel = 1;
    if (k->T(attention)(&a, 0, rows, statistics, output, workspace + 1, &cancel))
        fail("not cancelled");
    free(workspace);

    k->T(attention_prepare)(&a, statistics, output, dout, rows, prepared);
    T(take)(prepared, rows * 3);
    const ic_attention_gradient g = {
        .heads = a, .dout = dout, .prepared = prepared, .q_begin = q_begin, .q_users = users,
        .k_begin = k_begin, .k_users = users};
    workspace = buffer(k->T(attention_backward_workspace)(&g) + 1, 1);
    cancel = 0;
    if (!k->T(attention_backward)(&g, 0, 0, MATRICES * queries, dq, NULL, sums, workspace + 1,
                                  &cancel))
        fail("cancelled");
    T(take)(dq, MATRICES * queries * d);
    take_f64(sums, MATRICES * queries * IC_GRADIENT_SUMS);
    if (!k->T(attention_backward)(&g, 1, 0, keys, dk, dv, NULL, workspace + 1, &cancel))
        fail("cancelled");
    T(take)(dk, keys * d);
    T(take)(dv, keys * D_V);
    cancel = 1;
    if (k->T(attention_backward)(&g, 1, 0, keys, dk, dv, NULL, workspace + 1, &cancel))
        fail("not cancelled");
    void *const used[] = {q, keyed, v, dout, bias, keep, statistics, sums, output, prepared, dq, dk,
                          dv, workspace};
    for (size_t i = 0; i < COUNT(used); i++) free(used[i]);
}

static void T(run_attention)(const ic_kernels *k) {
    static const size_t keys[] = {1, 95, 97, 200};
    for (size_t i = 0; i < 64; i++)
        T(run_attention_of)(k, WIDTHS[i % COUNT(WIDTHS)], keys[i % COUNT(keys)],
                            WIDTHS[(i / 2 + 3) % COUNT(WIDTHS)], (int)(i % 32));
    T(run_attention_of)(k, 300, 100, 3, 16); /* more queries than are packed at a time */
}

static void T(run_typed)(const ic_kernels *k) {
    T(run_draw)(k);
    T(run_activate)(k);
    T(run_moments)(k);
    T(run_chain)(k);
    T(run_softmax)(k);
    T(run_attention)(k);
}
