/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs every kernel of every instruction set over buffers of exactly the size it may touch, at
 * lengths around a vector's, and compares the results with those of the first instruction set bit
 * for bit. Built with the address and undefined-behaviour sanitizers by test_c_kernels.py. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "initcore.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
static const size_t LENGTHS[] = {0, 1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 257, 1000};
static const size_t WIDTHS[] = {1, 7, 15, 16, 17, 63, 65};

/* The last three: a cut that needs no tail in float32, one that does, and a far tail. */
static const ic_distribution DISTRIBUTIONS[] = {
    {.kind = IC_CONSTANT, .shift = 1.5},
    {.kind = IC_UNIFORM, .scale = 2, .shift = 0.5, .low = -1.5, .high = 2.25},
    {.kind = IC_NORMAL, .scale = 2, .shift = 0.5},
    {IC_TRUNCATED_NORMAL, 2, 0.5, -2, 3, {{0.16, 0.16}, {0.68, 0.68}, 0.68, 0, 0}},
    {IC_TRUNCATED_NORMAL, 2, 0.5, -5, 6, {{0.16, 0.001}, {0.839, 0.839}, 0.839, 0.0795, 0}},
    {IC_TRUNCATED_NORMAL, 2, 0.5, 18, 99, {{1, 0}, {-1, 1}, 1.1e-19, 0.5, 87.25}}};

/* --- results ----------------------------------------------------------------------------------- */

enum { MOST_RESULTS = 1 << 16 };
static uint64_t first_digest[MOST_RESULTS];
static size_t results;
static int reference_run, failures;
static const char *isa;
static char label[160];

static void name(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(label, sizeof label, format, arguments);
    va_end(arguments);
}

static void fail(const char *what) {
    printf("%s: %s: %s\n", isa, label, what);
    failures++;
}

/* FNV-1a over words, NaN payloads left out. */
static uint64_t mix(uint64_t digest, uint64_t word) { return (digest ^ word) * 0x100000001B3u; }

static void record(uint64_t digest) {
    if (results == MOST_RESULTS) {
        fail("too many results");
        exit(1);
    }
    if (reference_run)
        first_digest[results] = digest;
    else if (first_digest[results] != digest)
        fail("differs from the first instruction set");
    results++;
}

/* --- buffers ----------------------------------------------------------------------------------- */

enum { UNWRITTEN = 0xA5 };

static void *buffer(size_t n, size_t size) {
    void *p = malloc(n * size);
    if (!p && n) exit(1);
    if (n) memset(p, UNWRITTEN, n * size);
    return p;
}

static uint64_t seed_of_inputs = 1;
static double random_input(void) { /* in (-4, 4) */
    seed_of_inputs = seed_of_inputs * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed_of_inputs >> 11) * 0x1p-53 - 0.5) * 8;
}

#define REAL double
#define WORD uint64_t
#define T(name) name##_f64
#include "run_typed.h"
#undef REAL
#undef WORD
#undef T
#define REAL float
#define WORD uint32_t
#define T(name) name##_f32
#include "run_typed.h"

/* --- kernels of one type ------------------------------------------------------------------------ */

static void run_philox(const ic_kernels *k) {
    static const uint32_t counters[][4] = {
        {0, 0, 0, 0}, {0xFFFFFFF0u, 0, 3, 5}, {0xFFFFFFFEu, 0xFFFFFFFFu, 1, 2}};
    for (size_t c = 0; c < COUNT(counters); c++)
        for (size_t i = 0; i < COUNT(LENGTHS); i++) {
            const size_t blocks = LENGTHS[i];
            uint32_t *out = buffer(blocks, 4 * sizeof *out);
            uint64_t digest = 0;
            k->philox(out, blocks, counters[c], 0x0123456789ABCDEFu);
            for (size_t w = 0; w < 4 * blocks; w++) digest = mix(digest, out[w]);
            name("philox counter %zu blocks %zu", c, blocks);
            record(digest);
            free(out);
        }
}

static void run_halves(const ic_kernels *k) {
    for (size_t d = 0; d < COUNT(DISTRIBUTIONS); d++)
        for (size_t i = 0; i < COUNT(LENGTHS); i++)
            for (int brain = 0; brain < 2; brain++) {
                const size_t rows = i % 3 + 1, n = rows * LENGTHS[i];
                uint16_t *out = buffer(n, sizeof *out);
                uint64_t digest = n;
                (brain ? k->draw_bf16 : k->draw_f16)(out, 5, LENGTHS[i], rows, 1000, 7, 11,
                                                     DISTRIBUTIONS + d);
                for (size_t j = 0; j < n; j++) digest = mix(digest, out[j]);
                name("draw %s law %zu n %zu", brain ? "bfloat16" : "float16", d, LENGTHS[i]);
                record(digest);
                free(out);
            }
}

static void run_exact(const ic_kernels *k) {
    static const double special[] = {0x1p-1074, -0x1.8p1023, 1e300, -1e-300, INFINITY, NAN, -0.0};
    for (size_t i = 0; i < COUNT(LENGTHS); i++)
        for (size_t m = 0; m < 6; m++) {
            const size_t t = LENGTHS[i] % 71;
            double *x = buffer(t * m, sizeof *x);
            int64_t *sums = calloc(m, IC_EXACT_WORDS * sizeof *sums);
            uint64_t digest = 0;
            if (!sums && m) exit(1);
            for (size_t j = 0; j < t * m; j++)
                x[j] = j % 5 ? random_input() : special[j / 5 % COUNT(special)];
            k->exact_add(sums, x, t, m);
            k->exact_add(sums, x, t, m);
            k->exact_carry(sums, m);
            for (size_t j = 0; j < m * IC_EXACT_WORDS; j++) digest = mix(digest, (uint64_t)sums[j]);
            name("exact_add t %zu m %zu", t, m);
            record(digest);
            free(x);
            free(sums);
        }
}

int main(void) {
    const ic_kernels *const *available = ic_available();
    for (size_t i = 0; available[i]; i++) {
        const ic_kernels *k = available[i];
        isa = k->isa;
        reference_run = i == 0;
        results = 0;
        seed_of_inputs = 1;
        run_philox(k);
        run_halves(k);
        run_exact(k);
        run_typed_f32(k);
        run_typed_f64(k);
        printf("%s: %zu results\n", isa, results);
    }
    return failures != 0;
}
