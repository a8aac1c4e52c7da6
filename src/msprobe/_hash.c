/* The hash of a tensor's bytes, at more than the speed of the memory; docs/format.md defines it.
 * msprobe/kernels_hash.py holds the same definition in numpy. */
#include "_widen.h"

enum { WORDS = HASH_BLOCK / 8, SHIFT = 2 };
/* Bytes from here to what is needed next. The statistics of a part come before its hash: without fetching the
 * next part meanwhile, the memory would rest while a part is hashed. */
enum { AHEAD = 1 << 14 };

static const uint64_t SEED = 0x6D7370726F626532u; /* "msprobe2" */
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
static const uint64_t RADIX = 0xD1342543DE82EF95u;

static uint64_t keys[WORDS + SHIFT]; /* each is a key for the low half of a word and one for the high half */

INLINE uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

HIDDEN void hash_prepare(void)
{
    for (uint64_t i = 0; i < WORDS + SHIFT; i++) keys[i] = mix(SEED + (i + 1) * GOLDEN);
}

INLINE uint64_t product(uint64_t word, uint64_t key)
{
    return (uint64_t)((uint32_t)word + (uint32_t)key) * ((uint32_t)(word >> 32) + (uint32_t)(key >> 32));
}

typedef struct { uint64_t first, second; } BlockSums;

/* Adds the words from number `begin` on that `bytes` has, the last of them filled up with zeros. */
static void add_words(const unsigned char *block, size_t begin, size_t bytes, BlockSums *sums)
{
    for (size_t i = begin; i * 8 < bytes; i++) {
        uint64_t word = 0;
        memcpy(&word, block + i * 8, bytes - i * 8 < 8 ? bytes - i * 8 : 8);
        sums->first += product(word, keys[i]);
        sums->second += product(word, keys[i + SHIFT]);
    }
}

static void add_whole_words(const unsigned char *block, size_t words, BlockSums *sums)
{
    uint64_t first = 0, second = 0;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, block + i * 8, 8);
        first += product(word, keys[i]);
        second += product(word, keys[i + SHIFT]);
    }
    sums->first += first;
    sums->second += second;
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2"), always_inline)) static inline
AVX2 __m256i load(const void *from) { return _mm256_loadu_si256(from); }
AVX2 __m256i products(__m256i words, const uint64_t *key)
{
    __m256i sum = _mm256_add_epi32(words, load(key));
    return _mm256_mul_epu32(sum, _mm256_srli_epi64(sum, 32));
}
AVX2 uint64_t total(__m256i x, __m256i y)
{
    uint64_t lanes[4];
    _mm256_storeu_si256((void *)lanes, _mm256_add_epi64(x, y));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/* The sums are exact, so their order does not matter. */
__attribute__((target("avx2"))) static size_t add_wide(const unsigned char *block, size_t words, BlockSums *sums)
{
    __m256i first[2] = {{0}}, second[2] = {{0}};
    size_t i = 0;
    for (; i + 8 <= words; i += 8)
        for (int half = 0; half < 2; half++) {
            const uint64_t *key = keys + i + 4 * half;
            __m256i here = load(block + (i + 4 * half) * 8);
            if (half == 0) _mm_prefetch((const void *)(block + i * 8 + AHEAD), _MM_HINT_T0);
            first[half] = _mm256_add_epi64(first[half], products(here, key));
            second[half] = _mm256_add_epi64(second[half], products(here, key + SHIFT));
        }
    sums->first += total(first[0], first[1]);
    sums->second += total(second[0], second[1]);
    return i;
}
#endif

HIDDEN uint64_t hash_add(uint64_t hash, const void *start, size_t bytes)
{
    const unsigned char *block = start;
#if defined(__x86_64__)
    int is_wide = __builtin_cpu_supports("avx2");
#endif
    for (size_t size; bytes > 0; block += size, bytes -= size) {
        BlockSums sums = {0, 0};
        size_t done = 0;
        size = bytes < HASH_BLOCK ? bytes : HASH_BLOCK;
#if defined(__x86_64__)
        if (is_wide) done = add_wide(block, size / 8, &sums);
#endif
        if (done == 0) add_whole_words(block, done = size / 8, &sums);
        add_words(block, done, size, &sums);
        hash = hash * RADIX + mix(mix(sums.first) + sums.second);
    }
    return hash;
}

HIDDEN uint64_t hash_end(uint64_t hash, uint64_t bytes) { return mix(hash + (bytes + 1) * GOLDEN); }
