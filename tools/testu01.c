/* SPDX-License-Identifier: BSD-3-Clause */
/* TestU01's batteries over 32-bit words from standard input: testu01 SmallCrush|Crush|BigCrush.
 * Exit code 1 if a p-value lies outside [1e-10, 1 - 1e-10], 2 if the words end too soon. */
#include <TestU01.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned int next_word(void) {
    static uint32_t words[1 << 16];
    static size_t used, count;
    if (used == count) {
        count = fread(words, sizeof *words, sizeof words / sizeof *words, stdin);
        used = 0;
        if (!count) {
            fputs("testu01: out of words\n", stderr);
            exit(2);
        }
    }
    return words[used++];
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(unif01_Gen *);
    } batteries[] = {{"SmallCrush", bbattery_SmallCrush},
                     {"Crush", bbattery_Crush},
                     {"BigCrush", bbattery_BigCrush}};
    for (size_t i = 0; i < sizeof batteries / sizeof *batteries; i++) {
        if (argc != 2 || strcmp(argv[1], batteries[i].name)) continue;
        unif01_Gen *generator = unif01_CreateExternGenBits("words", next_word);
        swrite_Basic = FALSE; /* the summary only */
        batteries[i].run(generator);
        for (int test = 0; test < bbattery_NTests; test++)
            if (bbattery_pVal[test] < 1e-10 || bbattery_pVal[test] > 1 - 1e-10) return 1;
        return 0;
    }
    fputs("usage: testu01 SmallCrush|Crush|BigCrush <words\n", stderr);
    return 2;
}
