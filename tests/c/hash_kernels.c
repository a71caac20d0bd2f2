/* SPDX-License-Identifier: BSD-3-Clause */
/* hash_kernels ISA: runs every kernel of one instruction set as run_kernels.c does and prints a
 * line `kernel type hash` for each, and for all of a type. Without ISA, prints what there is. Built by
 * test_neon.py, for this machine and for an emulated one. */
#define main compare_instruction_sets
#include "run_kernels.c"
#undef main

static void print_hash(const char *kernel, const char *type, void (*run)(const ic_kernels *),
                       const ic_kernels *k) {
    uint64_t digest = 0xCBF29CE484222325u;
    results = 0;
    seed_of_inputs = 1;
    run(k);
    for (size_t i = 0; i < results; i++) digest = mix(digest, first_digest[i]);
    printf("%s %s %016" PRIx64 "\n", kernel, type, digest);
}

#define PRINT(kernel, type) print_hash(#kernel, #type, run_##kernel##_##type, k)
#define PRINT_TYPE(type) \
    PRINT(draw, type); \
    PRINT(activate, type); \
    PRINT(moments, type); \
    PRINT(chain, type); \
    PRINT(softmax, type); \
    PRINT(attention, type); \
    PRINT(typed, type) /* all of them, also what this list has forgotten */

int main(int argc, char **argv) {
    const ic_kernels *const *available = ic_available();
    reference_run = 1; /* record the results, compare them with none */
    for (size_t i = 0; available[i]; i++) {
        const ic_kernels *k = available[i];
        isa = k->isa;
        if (argc < 2) {
            puts(isa);
        } else if (!strcmp(isa, argv[1])) {
            print_hash("philox", "u32", run_philox, k);
            print_hash("exact", "f64", run_exact, k);
            print_hash("draw", "halves", run_halves, k);
            PRINT_TYPE(f32);
            PRINT_TYPE(f64);
        }
    }
    return failures != 0;
}
