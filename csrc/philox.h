/* SPDX-License-Identifier: BSD-3-Clause */
/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), sixteen blocks at a time.
 *
 * A block is four 32-bit words c; each round makes
 *   c0' = high(c2 M1) ^ c1 ^ k0,  c1' = low(c2 M1),  c2' = high(c0 M0) ^ c3 ^ k1,  c3' = low(c0 M0)
 * and adds a Weyl constant to each key. A word lives in the low half of a 64-bit lane: the 32 x 32
 * product ignores the high half, so `low` costs nothing and `high` is one shift.
 *
 * The counter here is (block low, block high, stream low, stream high). An aligned group of sixteen
 * blocks never carries out of block low, so only that word differs between lanes, and the parts of
 * the first three rounds that it has not reached are scalars, folded into the keys beforehand. */
#ifndef IC_PHILOX_H
#define IC_PHILOX_H

enum { IC_ROUNDS = 10 };

/* What each round xors into words 0 and 2, for one key, stream and high word of the block. */
typedef struct {
    uint64_t key0[IC_ROUNDS], key1[IC_ROUNDS];
} philox_keys;

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u

IC_INLINE philox_keys philox_schedule(uint64_t key, uint64_t stream, uint32_t block_high) {
    philox_keys keys;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < IC_ROUNDS; round++) {
        keys.key0[round] = k0;
        keys.key1[round] = k1;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t first = PHILOX_M1 * (stream & 0xFFFFFFFFu);
    const uint64_t second = PHILOX_M0 * ((first >> 32) ^ block_high ^ keys.key0[0]);
    keys.key1[0] ^= stream >> 32;
    keys.key0[1] ^= first & 0xFFFFFFFFu;
    keys.key1[1] ^= second >> 32;
    keys.key1[2] ^= second & 0xFFFFFFFFu;
    return keys;
}

/* Eight blocks; the answer is the low half of each lane, above it is rubbish. */
IC_INLINE void philox_eight(u64x8 c[4], u64x8 block_low, const philox_keys *keys) {
    const u64x8 m0 = blocks_set(PHILOX_M0), m1 = blocks_set(PHILOX_M1);
    const u64x8 first = blocks_mul32(block_low, m0);
    c[2] = blocks_xor(blocks_high32(first), blocks_set(keys->key1[0]));
    c[1] = blocks_mul32(c[2], m1);
    c[0] = blocks_xor(blocks_high32(c[1]), blocks_set(keys->key0[1]));
    c[2] = blocks_xor(first, blocks_set(keys->key1[1]));
    c[3] = blocks_set(0);
    for (int round = 2; round < IC_ROUNDS; round++) {
        const u64x8 p0 = blocks_mul32(c[0], m0), p1 = blocks_mul32(c[2], m1);
        c[0] = blocks_xor(blocks_high32(p1), blocks_xor(c[1], blocks_set(keys->key0[round])));
        c[2] = blocks_xor(blocks_high32(p0), blocks_xor(c[3], blocks_set(keys->key1[round])));
        c[1] = p1;
        c[3] = p0;
    }
}

/* Words 0 to 3 of blocks group ... group + 15; `group` is a multiple of 16. */
IC_INLINE void philox_words_f32(u32x16 w[4], uint64_t group, const philox_keys *keys) {
    u64x8 low[4], high[4];
    philox_eight(low, blocks_low(group), keys);
    philox_eight(high, blocks_high(group), keys);
    for (int i = 0; i < 4; i++) w[i] = blocks_pack(low[i], high[i]);
}

/* The same as two 64-bit words a block: words 0 and 1, words 2 and 3, the former of each on top. */
IC_INLINE void philox_words_f64(u64x16 w[2], uint64_t group, const philox_keys *keys) {
    u64x8 low[4], high[4];
    philox_eight(low, blocks_low(group), keys);
    philox_eight(high, blocks_high(group), keys);
    for (int i = 0; i < 2; i++)
        w[i] = blocks_join(low[2 * i], high[2 * i], low[2 * i + 1], high[2 * i + 1]);
}

/* out (blocks, 4): blocks of counter, counter + 1, ...; words 0 and 1 of the counter count (modulo
 * 2^64), words 2 and 3 stay.
 * Domain: all. Max error: none (Random123's known answers). Determinism: exact integers. */
static void philox(uint32_t *out, size_t blocks, const uint32_t counter[4], uint64_t key) {
    const uint64_t stream = (uint64_t)counter[3] << 32 | counter[2];
    uint64_t block = (uint64_t)counter[1] << 32 | counter[0];
    while (blocks) {
        const unsigned lane = block % 16;
        const size_t n = blocks < 16 - lane ? blocks : 16 - lane;
        const philox_keys keys = philox_schedule(key, stream, (uint32_t)(block >> 32));
        u32x16 w[4];
        uint32_t words[4][16];
        philox_words_f32(w, block - lane, &keys);
        for (int i = 0; i < 4; i++) u32_store(words[i], w[i]);
        for (size_t l = 0; l < n; l++)
            for (int i = 0; i < 4; i++) *out++ = words[i][lane + l];
        block += n;
        blocks -= n;
    }
}

#endif
