/* One pass over raw memory at the speed of the memory: statistics and sketch of one tensor; a glance at it;
 * its packing; and the door to Python, also of _pair.c and _hash.c.
 *
 * Every sum runs in independent lanes, in an order that this source fixes. So the loops vectorise without
 * fast-math, and each instruction set gives the same bits (with -ffp-contract=off).
 * msprobe/kernels.py holds the same definitions in numpy; docs/format.md defines the sketch. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "_widen.h"

enum { LANES = 16, CHUNK = 2048, BLOCK = 64 };
enum { PART = 2 * CHUNK }; /* elements that stay in the cache between their sums and their hash */
static const size_t GIL_BYTES = 1 << 16; /* below this, releasing the GIL costs more than it gives */

/* ---- the floating-point environment ---- */

/* Where the program flushes subnormals (torch.set_flush_denormal), elements near 0 would count as 0. */
#if defined(__x86_64__)
typedef unsigned int Environment;
INLINE Environment environment_default(void)
{
    Environment before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1F80);
    return before;
}
INLINE void environment_restore(Environment before) { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
typedef uint64_t Environment;
INLINE Environment environment_default(void)
{
    Environment before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return before;
}
INLINE void environment_restore(Environment before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
}
#else
typedef int Environment;
INLINE Environment environment_default(void) { return 0; }
INLINE void environment_restore(Environment before) { (void)before; }
#endif

/* ---- statistics ---- */

typedef struct {
    double max, min, mean, norm;
    unsigned long long nan, inf;
    long long signed_max, signed_min;
    unsigned long long unsigned_max, unsigned_min;
} Result;

typedef struct { double max, min, sum, squares; } Sums;

static void finish_not_finite(Result *out, uint64_t nan, uint64_t positive, uint64_t negative)
{
    out->nan = nan;
    out->inf = positive + negative;
    if (nan) {
        out->max = out->min = out->mean = out->norm = NAN;
        return;
    }
    if (positive) out->max = INFINITY;
    if (negative) out->min = -INFINITY;
    out->mean = positive && negative ? NAN : positive ? INFINITY : -INFINITY;
    out->norm = INFINITY;
}

/* Squares of f8 leave the range of a double; a power of two takes them back without rounding. */
static void rescale_f8(const double *x, size_t count, Result *out)
{
    double peak = fmax(out->max, -out->min), sum = 0, squares = 0;
    int exponent;
    if (peak == 0 || (peak < 1e140 && peak > 1e-140)) return;
    frexp(peak, &exponent);
    exponent = exponent < -1021 ? -1021 : exponent > 1021 ? 1021 : exponent;
    double scale = ldexp(1, -exponent);
    for (size_t i = 0; i < count; i++) {
        double value = x[i] * scale;
        sum += value;
        squares += value * value;
    }
    out->mean = ldexp(sum / (double)count, exponent);
    out->norm = ldexp(sqrt(squares), exponent);
}
static void rescale_none(const void *x, size_t count, Result *out) { (void)x, (void)count, (void)out; }

#define FLOAT_SUMS(KIND, TYPE, WIDE)                                                                         \
    INLINE void chunk_##KIND(const TYPE *x, size_t count, Sums *total)                                       \
    {                                                                                                        \
        WIDE max[LANES], min[LANES];                                                                         \
        double sum[LANES], squares[LANES];                                                                   \
        size_t i = 0;                                                                                        \
        for (int l = 0; l < LANES; l++) max[l] = -INFINITY, min[l] = INFINITY, sum[l] = squares[l] = 0;      \
        for (; i + LANES <= count; i += LANES)                                                               \
            for (int l = 0; l < LANES; l++) {                                                                \
                WIDE value = wide_##KIND(x[i + l]);                                                          \
                max[l] = value > max[l] ? value : max[l];                                                    \
                min[l] = value < min[l] ? value : min[l];                                                    \
                sum[l] += (double)value;                                                                     \
                squares[l] += (double)value * (double)value;                                                 \
            }                                                                                                \
        for (int width = LANES / 2; width; width /= 2)                                                       \
            for (int l = 0; l < width; l++) {                                                                \
                max[l] = max[l + width] > max[l] ? max[l + width] : max[l];                                  \
                min[l] = min[l + width] < min[l] ? min[l + width] : min[l];                                  \
                sum[l] += sum[l + width];                                                                    \
                squares[l] += squares[l + width];                                                            \
            }                                                                                                \
        for (; i < count; i++) {                                                                             \
            WIDE value = wide_##KIND(x[i]);                                                                  \
            max[0] = value > max[0] ? value : max[0];                                                        \
            min[0] = value < min[0] ? value : min[0];                                                        \
            sum[0] += (double)value;                                                                         \
            squares[0] += (double)value * (double)value;                                                     \
        }                                                                                                    \
        total->max = max[0] > total->max ? max[0] : total->max;                                              \
        total->min = min[0] < total->min ? min[0] : total->min;                                              \
        total->sum += sum[0];                                                                                \
        total->squares += squares[0];                                                                        \
    }                                                                                                        \
    KERNEL void sums_##KIND(const TYPE *x, size_t count, Sums *total)                                        \
    {                                                                                                        \
        for (size_t i = 0; i < count; i += CHUNK)                                                            \
            chunk_##KIND(x + i, count - i < CHUNK ? count - i : CHUNK, total);                               \
    }

FLOAT_SUMS(bf2, uint16_t, float)
FLOAT_SUMS(f4, float, float)
FLOAT_SUMS(f8, double, double)

static void sums_f2(const uint16_t *x, size_t count, Sums *total)
{
    float wide[CHUNK];
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t part = count - i < CHUNK ? count - i : CHUNK;
        widen_f2(x + i, part, wide);
        sums_f4(wide, part, total);
    }
}

#define FLOAT_KIND(KIND, BITS, INF_BITS, RESCALE)                                                            \
    KERNEL void odd_##KIND(const BITS *x, size_t count, uint64_t odd[3])                                     \
    {                                                                                                        \
        const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1), magnitude = sign - 1;                           \
        for (size_t i = 0; i < count; i += CHUNK) {                                                          \
            BITS nan = 0, positive = 0, negative = 0;                                                        \
            for (size_t j = i, end = count - i < CHUNK ? count : i + CHUNK; j < end; j++) {                  \
                nan += (BITS)(x[j] & magnitude) > INF_BITS;                                                  \
                positive += x[j] == INF_BITS;                                                                \
                negative += x[j] == (BITS)(INF_BITS | sign);                                                 \
            }                                                                                                \
            odd[0] += nan, odd[1] += positive, odd[2] += negative;                                           \
        }                                                                                                    \
    }                                                                                                        \
    static void statistics_##KIND(const void *x, size_t count, Result *out, uint64_t *hash)                  \
    {                                                                                                        \
        Sums total = {-INFINITY, INFINITY, 0, 0};                                                            \
        uint64_t odd[3] = {0, 0, 0};                                                                         \
        const BITS *from = x;                                                                                \
        for (size_t i = 0; i < count; i += PART) {                                                           \
            size_t part = count - i < PART ? count - i : PART;                                               \
            sums_##KIND((const void *)(from + i), part, &total);                                             \
            if (hash != NULL) *hash = hash_add(*hash, from + i, part * sizeof(BITS));                        \
        }                                                                                                    \
        out->max = total.max, out->min = total.min;                                                          \
        out->mean = total.sum / (double)count, out->norm = sqrt(total.squares);                              \
        if (!(total.squares < INFINITY)) odd_##KIND(x, count, odd);                                          \
        if (odd[0] | odd[1] | odd[2]) finish_not_finite(out, odd[0], odd[1], odd[2]);                        \
        else RESCALE(x, count, out);                                                                         \
    }

FLOAT_KIND(f2, uint16_t, 0x7C00, rescale_none)
FLOAT_KIND(bf2, uint16_t, 0x7F80, rescale_none)
FLOAT_KIND(f4, uint32_t, 0x7F800000u, rescale_none)
FLOAT_KIND(f8, uint64_t, 0x7FF0000000000000u, rescale_f8)

typedef struct { __int128 total; double squares; } IntegerSums;

/* SUM and SQUARE hold one chunk exactly; SQUARE is double where not even one square is exact. */
#define INTEGER_KIND(KIND, TYPE, SUM, SQUARE, SIGNEDNESS)                                                    \
    KERNEL void integers_##KIND(const TYPE *x, size_t count, IntegerSums *sums, Result *out)                 \
    {                                                                                                        \
        TYPE max = (TYPE)out->SIGNEDNESS##_max, min = (TYPE)out->SIGNEDNESS##_min;                           \
        __int128 total = 0;                                                                                  \
        double squares = sums->squares;                                                                      \
        for (size_t i = 0; i < count; i += CHUNK) {                                                          \
            size_t j = i, end = count - i < CHUNK ? count : i + CHUNK;                                       \
            SUM sum = 0;                                                                                     \
            SQUARE lanes[4] = {0, 0, 0, 0};                                                                  \
            for (; j + 4 <= end; j += 4)                                                                     \
                for (int l = 0; l < 4; l++) lanes[l] += (SQUARE)x[j + l] * (SQUARE)x[j + l];                 \
            for (; j < end; j++) lanes[0] += (SQUARE)x[j] * (SQUARE)x[j];                                    \
            for (j = i; j < end; j++) {                                                                      \
                max = x[j] > max ? x[j] : max;                                                               \
                min = x[j] < min ? x[j] : min;                                                               \
                sum += (SUM)x[j];                                                                            \
            }                                                                                                \
            total += sum;                                                                                    \
            squares += ((double)lanes[0] + (double)lanes[2]) + ((double)lanes[1] + (double)lanes[3]);        \
        }                                                                                                    \
        out->SIGNEDNESS##_max = max, out->SIGNEDNESS##_min = min;                                            \
        sums->total += total;                                                                                \
        sums->squares = squares;                                                                             \
    }                                                                                                        \
    static void statistics_##KIND(const void *x, size_t count, Result *out, uint64_t *hash)                  \
    {                                                                                                        \
        const TYPE *from = x;                                                                                \
        IntegerSums sums = {0, 0};                                                                           \
        out->SIGNEDNESS##_max = out->SIGNEDNESS##_min = from[0];                                             \
        for (size_t i = 0; i < count; i += PART) {                                                           \
            size_t part = count - i < PART ? count - i : PART;                                               \
            integers_##KIND(from + i, part, &sums, out);                                                     \
            if (hash != NULL) *hash = hash_add(*hash, from + i, part * sizeof(TYPE));                        \
        }                                                                                                    \
        out->mean = (double)sums.total / (double)count;                                                      \
        out->norm = sqrt(sums.squares);                                                                      \
    }

INTEGER_KIND(i1, int8_t, int32_t, int32_t, signed)
INTEGER_KIND(u1, uint8_t, uint32_t, uint32_t, unsigned)
INTEGER_KIND(i2, int16_t, int32_t, int64_t, signed)
INTEGER_KIND(u2, uint16_t, uint32_t, uint64_t, unsigned)
INTEGER_KIND(i4, int32_t, int64_t, double, signed)
INTEGER_KIND(u4, uint32_t, uint64_t, double, unsigned)
INTEGER_KIND(i8, int64_t, __int128, double, signed)
INTEGER_KIND(u8, uint64_t, __int128, double, unsigned)
#define statistics_b1 statistics_u1

/* ---- sketch ---- */

static const uint64_t SKETCH_SEED = 0x6D7370726F626531u; /* "msprobe1" */

INLINE uint64_t splitmix64(uint64_t number) /* the output with this number, counted from 0 */
{
    uint64_t z = SKETCH_SEED + (number + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

INLINE float signed_single(float value, uint32_t signs, int lane)
{
    uint32_t bits = bits_of_float(value), finite = (bits & 0x7F800000u) == 0x7F800000u ? 0 : 0xFFFFFFFFu;
    return float_of((bits & finite) ^ ((signs << (31 - lane)) & 0x80000000u));
}
INLINE double signed_double(double value, uint32_t signs, int lane)
{
    uint64_t bits = bits_of_double(value);
    uint64_t finite = (bits & 0x7FF0000000000000u) == 0x7FF0000000000000u ? 0 : ~(uint64_t)0;
    return double_of((bits & finite) ^ ((uint64_t)((signs << (31 - lane)) & 0x80000000u) << 32));
}

/* The high three bits of the rotation only move whole groups of 8 lanes. The low three bits permute inside a
 * group, which is dear; so each of their values has sums of its own, folded once at the end. */
typedef double SketchSums[8][BLOCK];

#define SKETCH_KIND(KIND, TYPE, WIDEN, SIGNED)                                                               \
    INLINE void block_##KIND(const TYPE *x, uint64_t number, SketchSums sums)                                \
    {                                                                                                        \
        uint64_t signs = splitmix64(2 * number);                                                             \
        int rotation = (int)(splitmix64(2 * number + 1) >> 58);                                              \
        for (int group = 0; group < BLOCK; group += 8) {                                                     \
            double *restrict into = &sums[rotation & 7][group ^ (rotation & 56)];                            \
            uint32_t here = (uint32_t)(signs >> group);                                                      \
            _Pragma("GCC unroll 1") /* unrolled, these loops do not vectorise */                             \
            for (int l = 0; l < 8; l++) into[l] += (double)SIGNED(WIDEN(x[group + l]), here, l);             \
        }                                                                                                    \
    }                                                                                                        \
    KERNEL void blocks_##KIND(const TYPE *x, size_t count, uint64_t first, SketchSums sums)                  \
    {                                                                                                        \
        size_t blocks = count / BLOCK;                                                                       \
        for (size_t b = 0; b < blocks; b++) block_##KIND(x + b * BLOCK, first + b, sums);                    \
        if (count % BLOCK == 0) return;                                                                      \
        TYPE rest[BLOCK] = {0};                                                                              \
        memcpy(rest, x + blocks * BLOCK, count % BLOCK * sizeof(TYPE));                                      \
        block_##KIND(rest, first + blocks, sums);                                                            \
    }                                                                                                        \
    static void sketch_##KIND(const void *x, size_t count, uint64_t first, SketchSums sums)                  \
    {                                                                                                        \
        blocks_##KIND(x, count, first, sums);                                                                \
    }

SKETCH_KIND(bf2, uint16_t, wide_bf2, signed_single)
SKETCH_KIND(f4, float, wide_f4, signed_single)
SKETCH_KIND(f8, double, wide_f8, signed_double)
SKETCH_KIND(i1, int8_t, (double), signed_double)
SKETCH_KIND(u1, uint8_t, (double), signed_double)
SKETCH_KIND(i2, int16_t, (double), signed_double)
SKETCH_KIND(u2, uint16_t, (double), signed_double)
SKETCH_KIND(i4, int32_t, (double), signed_double)
SKETCH_KIND(u4, uint32_t, (double), signed_double)
SKETCH_KIND(i8, int64_t, (double), signed_double)
SKETCH_KIND(u8, uint64_t, (double), signed_double)
#define sketch_b1 sketch_u1

static void sketch_f2(const void *start, size_t count, uint64_t first, SketchSums sums)
{
    const uint16_t *x = start;
    float wide[CHUNK];
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t part = count - i < CHUNK ? count - i : CHUNK;
        widen_f2(x + i, part, wide);
        blocks_f4(wide, part, first + i / BLOCK, sums);
    }
}

static void fold(SketchSums sums, unsigned char *out)
{
    for (int bucket = 0; bucket < BLOCK; bucket++) {
        double sum = 0;
        for (int low = 0; low < 8; low++) sum += sums[low][bucket ^ low];
        uint32_t bits = bits_of_float((float)sum);
        for (int byte = 0; byte < 4; byte++) out[4 * bucket + byte] = (unsigned char)(bits >> (8 * byte));
    }
}

/* The brief sketch: 16 sums over at most PICKS blocks, which stand for the others. Of each of PICKS equal parts of a
 * long tensor one block is picked at random, so that no regular pattern of rows or channels is missed. */
enum { BRIEF = 16, PICKS = 256 };

INLINE uint64_t picked_block(uint64_t pick, uint64_t blocks)
{
    if (blocks <= PICKS) return pick;
    uint64_t begin = pick * blocks / PICKS, end = (pick + 1) * blocks / PICKS;
    return begin + splitmix64(((uint64_t)1 << 63) + pick) % (end - begin);
}

static void fold_brief(SketchSums sums, unsigned char *out)
{
    double buckets[BRIEF] = {0};
    for (int group = 0; group < BLOCK; group += BRIEF)
        for (int low = 0; low < 8; low++)
            for (int bucket = 0; bucket < BRIEF; bucket++) buckets[bucket] += sums[low][(group + bucket) ^ low];
    for (int bucket = 0; bucket < BRIEF; bucket++) {
        uint32_t bits = bits_of_float((float)buckets[bucket]);
        for (int byte = 0; byte < 4; byte++) out[4 * bucket + byte] = (unsigned char)(bits >> (8 * byte));
    }
}

/* ---- packing ---- */

/* The format of deflate (RFC 1951), at the speed of a copy: where a word of 8 bytes comes over and over, a block of
 * back references; all between is stored as it is. Random mantissas do not pack anyway. */

enum { WORD = 8, MATCH = 256, SHORTEST_RUN = 8, STORED_MOST = 65535 };

typedef struct {
    unsigned char *out;
    size_t used, room; /* used > room: there was not enough */
    uint64_t bits;     /* not yet written, lowest first */
    int count;
} Packed;

static void put_bits(Packed *p, uint64_t value, int count)
{
    p->bits |= value << p->count;
    for (p->count += count; p->count >= 8; p->count -= 8, p->bits >>= 8) {
        if (p->used < p->room) p->out[p->used] = (unsigned char)p->bits;
        p->used++;
    }
}

/* Huffman codes are written highest bit first. */
static void put_code(Packed *p, unsigned code, int count)
{
    unsigned turned = 0;
    for (int i = 0; i < count; i++) turned |= (code >> i & 1) << (count - 1 - i);
    put_bits(p, turned, count);
}

static void put_stored(Packed *p, const unsigned char *data, size_t size)
{
    while (size > 0 && p->used <= p->room) {
        size_t part = size < STORED_MOST ? size : STORED_MOST;
        put_bits(p, 0, 3); /* not the last block, stored */
        put_bits(p, 0, (8 - p->count) % 8);
        put_bits(p, part | (part ^ 0xFFFF) << 16, 32);
        if (p->used + part <= p->room) memcpy(p->out + p->used, data, part);
        p->used += part, data += part, size -= part;
    }
}

/* The last word `words` times again. */
static void put_run(Packed *p, size_t words)
{
    put_bits(p, 2, 3); /* not the last block, fixed codes */
    for (size_t rest = words * WORD, part; rest > 0 && p->used <= p->room; rest -= part) {
        part = rest < MATCH ? rest : MATCH;
        unsigned over = (unsigned)part - 3;
        int extra = over < 8 ? 0 : 29 - __builtin_clz(over);
        unsigned symbol = over < 8 ? 257 + over : 257 + 4 * (unsigned)extra + (over >> extra);
        if (symbol < 280) put_code(p, symbol - 256, 7);
        else put_code(p, symbol - 280 + 192, 8);
        put_bits(p, over & ((1u << extra) - 1), extra);
        put_code(p, 5, 5); /* 7 or 8 bytes back: */
        put_bits(p, 1, 1);
    }
    put_code(p, 0, 7); /* end of the block */
}

INLINE uint64_t word_at(const unsigned char *data, size_t i)
{
    uint64_t word;
    memcpy(&word, data + i * WORD, WORD);
    return word;
}

/* Whether, in a sample, at least one of eight words is like the one before it. */
static int has_runs(const unsigned char *data, size_t words)
{
    enum { PLACES = 61, LENGTH = 32 };
    size_t like = 0, seen = 0, step = words / PLACES > LENGTH ? words / PLACES : LENGTH;
    for (size_t place = 0; place + LENGTH <= words; place += step)
        for (size_t i = 1; i < LENGTH; i++, seen++) like += word_at(data, place + i) == word_at(data, place + i - 1);
    return like * 8 >= seen && like > 0;
}

static void pack_runs(Packed *p, const unsigned char *data, size_t size)
{
    size_t words = size / WORD, dense = 0;
    for (size_t i = 1; i < words && p->used <= p->room; i++) {
        uint64_t word = word_at(data, i - 1);
        if (word_at(data, i) != word) continue;
        size_t first = i;
        while (i < words && word_at(data, i) == word) i++;
        if (i - first < SHORTEST_RUN) continue;
        put_stored(p, data + dense * WORD, (first - dense) * WORD);
        put_run(p, i - first);
        dense = i;
    }
    put_stored(p, data + dense * WORD, size - dense * WORD);
    put_bits(p, 3, 3); /* the last block, fixed codes, */
    put_code(p, 0, 7); /* empty */
    put_bits(p, 0, (8 - p->count) % 8);
}

/* ---- vector registers ---- */

/* Foreign code that returns with the upper halves of the vector registers in use slows down the SSE code of
 * everyone who comes after it, on some processors by a multiple. */
static PyObject *clear_upper(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                         "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
    Py_RETURN_NONE;
}

/* ---- the door to Python ---- */

typedef struct {
    const char *name;
    char group; /* how max and min are given: 'f'loat, 'i'nteger, 'u'nsigned, 'b'ool */
    const Widening *widening;
    void (*statistics)(const void *, size_t, Result *, uint64_t *hash); /* adds to the hash unless it is NULL */
    void (*sketch)(const void *, size_t, uint64_t first, SketchSums); /* first: the number of its first block */
} Kind;

#define KIND(NAME, GROUP) {#NAME, GROUP, &widening_##NAME, statistics_##NAME, sketch_##NAME}
static const Kind KINDS[] = {
    KIND(f4, 'f'), KIND(bf2, 'f'), KIND(f2, 'f'), KIND(f8, 'f'), KIND(i8, 'i'),
    KIND(i4, 'i'), KIND(i2, 'i'),  KIND(i1, 'i'), KIND(u1, 'u'), KIND(b1, 'b'),
    KIND(u2, 'u'), KIND(u4, 'u'),  KIND(u8, 'u'), {NULL, 0, NULL, NULL, NULL},
};

typedef struct { const void *address; size_t count; const Kind *kind; } Memory;

static int memory_of(PyObject *const *arguments, Memory *memory)
{
    Py_ssize_t count = PyLong_AsSsize_t(arguments[1]);
    if (count == -1 && PyErr_Occurred()) return 0;
    const char *name = PyUnicode_AsUTF8AndSize(arguments[2], NULL);
    if (name == NULL) return 0;
    memory->address = PyLong_AsVoidPtr(arguments[0]);
    if (memory->address == NULL && PyErr_Occurred()) return 0;
    memory->kind = KINDS;
    while (memory->kind->name != NULL && strcmp(memory->kind->name, name) != 0) memory->kind++;
    if (memory->kind->name == NULL) return PyErr_Format(PyExc_KeyError, "%s", name), 0;
    if (count < 0 || (count > 0 && memory->address == NULL))
        return PyErr_SetString(PyExc_ValueError, "There is no memory at this address of this count."), 0;
    memory->count = (size_t)count;
    return 1;
}

/* Calls RUN with plain IEEE arithmetic, and lets other threads run meanwhile when it takes long. */
#define RUN_KERNEL(MEMORY, RUN)                                                                              \
    do {                                                                                                     \
        int long_run = (MEMORY).count >= GIL_BYTES / (MEMORY).kind->widening->size;                          \
        PyThreadState *thread = long_run ? PyEval_SaveThread() : NULL;                                       \
        Environment before = environment_default();                                                          \
        RUN;                                                                                                 \
        environment_restore(before);                                                                         \
        if (thread != NULL) PyEval_RestoreThread(thread);                                                    \
    } while (0)

/* The values of one result, inside the tuple of one argument that tuple.__new__ takes. */
static PyObject *values_of(char group, const Result *r)
{
    PyObject *none = Py_None;
    PyObject *any = r->unsigned_max ? Py_True : Py_False, *all = r->unsigned_min ? Py_True : Py_False;
    switch (group) {
    case 'f': return Py_BuildValue("((ddddKK))", r->max, r->min, r->mean, r->norm, r->nan, r->inf);
    case 'i': return Py_BuildValue("((LLddii))", r->signed_max, r->signed_min, r->mean, r->norm, 0, 0);
    case 'u': return Py_BuildValue("((KKddii))", r->unsigned_max, r->unsigned_min, r->mean, r->norm, 0, 0);
    case 'b': return Py_BuildValue("((OOOOii))", any, all, none, none, 0, 0);
    default: return Py_BuildValue("((OOOOii))", none, none, none, none, 0, 0);
    }
}

static PyObject *refuse(const char *reason)
{
    PyErr_SetString(PyExc_TypeError, reason);
    return NULL;
}

static int is_tuple_type(PyObject *type)
{
    return PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type);
}

/* An instance of a type of tuple; takes the values over. These are numbers, so it is in no cycle, and the
 * garbage collector need not look at it: a step of training makes thousands of them. */
static PyObject *made_of(PyObject *type, PyObject *values)
{
    if (values == NULL) return NULL;
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *made = make((PyTypeObject *)type, values, NULL);
    Py_DECREF(values);
    if (made != NULL) PyObject_GC_UnTrack(made);
    return made;
}

static PyObject *statistics(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory memory;
    Result result = {0};
    if (given != 4 || !is_tuple_type(arguments[0]))
        return refuse("statistics takes a type of tuple, an address, a count and a kind.");
    if (!memory_of(arguments + 1, &memory)) return NULL;
    if (memory.count > 0) RUN_KERNEL(memory, memory.kind->statistics(memory.address, memory.count, &result, NULL));
    return made_of(arguments[0], values_of(memory.count > 0 ? memory.kind->group : 0, &result));
}

static PyObject *hex_of(uint64_t hash)
{
    char digits[17];
    for (int i = 0; i < 16; i++) digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    digits[16] = 0;
    return PyUnicode_FromString(digits);
}

static void sketch_of(Memory memory, unsigned char *out)
{
    SketchSums sums;
    memset(sums, 0, sizeof sums);
    memory.kind->sketch(memory.address, memory.count, 0, sums);
    fold(sums, out);
}

/* Of elements that lie in a row, or of the picked blocks alone, of `count` elements in all. */
static void brief_of(Memory memory, int is_picked, unsigned char *out)
{
    SketchSums sums;
    size_t blocks = (memory.count + BLOCK - 1) / BLOCK, bytes = BLOCK * memory.kind->widening->size;
    memset(sums, 0, sizeof sums);
    if (blocks <= PICKS) {
        memory.kind->sketch(memory.address, memory.count, 0, sums);
    } else {
        for (uint64_t pick = 0; pick < PICKS; pick++) {
            uint64_t block = picked_block(pick, blocks);
            size_t rest = memory.count - block * BLOCK;
            const char *from = (const char *)memory.address + (is_picked ? pick : block) * bytes;
            memory.kind->sketch(from, rest < BLOCK ? rest : BLOCK, block, sums);
        }
    }
    fold_brief(sums, out);
}

static PyObject *brief(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory memory;
    unsigned char out[4 * BRIEF];
    if (given != 3) return refuse("brief takes the address of the picked blocks, the count of all elements and a kind.");
    if (!memory_of(arguments, &memory)) return NULL;
    RUN_KERNEL(memory, brief_of(memory, 1, out));
    return PyBytes_FromStringAndSize((const char *)out, sizeof out);
}

/* The sketch is the whole one of any kind, or the brief one of those kinds that have one. */
static PyObject *described(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory memory;
    Result result = {0};
    uint64_t hash = 0;
    unsigned char out[4 * BLOCK];
    if (given != 5 || !is_tuple_type(arguments[0]))
        return refuse("described takes a type of tuple, an address, a count, a kind, and whether the sketch is whole.");
    if (!memory_of(arguments + 1, &memory)) return NULL;
    int is_whole = PyObject_IsTrue(arguments[4]);
    if (is_whole < 0) return NULL;
    int is_brief = !is_whole && memory.count > 0 && strchr("fb", memory.kind->group) != NULL;
    RUN_KERNEL(memory, {
        if (memory.count > 0) memory.kind->statistics(memory.address, memory.count, &result, &hash);
        if (is_whole) sketch_of(memory, out);
        if (is_brief) brief_of(memory, 0, out);
    });
    PyObject *made = made_of(arguments[0], values_of(memory.count > 0 ? memory.kind->group : 0, &result));
    if (made == NULL) return NULL;
    PyObject *digits = hex_of(hash_end(hash, memory.count * memory.kind->widening->size));
    if (!is_whole && !is_brief) return Py_BuildValue("(NNO)", made, digits, Py_None);
    return Py_BuildValue("(NNy#)", made, digits, (const char *)out, (Py_ssize_t)(4 * (is_whole ? BLOCK : BRIEF)));
}

static PyObject *hash_part(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 2) return refuse("hash_part takes an address and a number of bytes.");
    const void *start = PyLong_AsVoidPtr(arguments[0]);
    Py_ssize_t size = PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (size < 0 || (size > 0 && start == NULL)) return refuse("There is no memory at this address.");
    PyThreadState *thread = (size_t)size >= GIL_BYTES ? PyEval_SaveThread() : NULL;
    uint64_t hash = hash_add(0, start, (size_t)size);
    if (thread != NULL) PyEval_RestoreThread(thread);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *pair(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory target, golden;
    PairSums s = {0};
    if (given != 6 || !is_tuple_type(arguments[0]))
        return refuse("pair takes a type of tuple, an address and a kind, both again, and a count.");
    PyObject *const of_target[] = {arguments[1], arguments[5], arguments[2]};
    PyObject *const of_golden[] = {arguments[3], arguments[5], arguments[4]};
    if (!memory_of(of_target, &target) || !memory_of(of_golden, &golden)) return NULL;
    RUN_KERNEL(target, pair_sums(target.address, target.kind->widening, golden.address, golden.kind->widening,
                                 target.count, &s));
    return made_of(arguments[0], Py_BuildValue("((ddddddKKKKK))", s.dot, s.target_squares, s.golden_squares,
                                               s.difference_squares, s.max_abs, s.max_relative, s.thousandth,
                                               s.five_thousandths, s.unequal, s.mismatched, s.opposite));
}

static PyObject *error(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory result, reference;
    ErrorFound f = {0};
    if (given != 12)
        return refuse("error takes an address and a kind, both again, rows, columns, two addresses and four numbers.");
    size_t rows = PyLong_AsSize_t(arguments[4]), columns = PyLong_AsSize_t(arguments[5]);
    if (PyErr_Occurred()) return NULL;
    PyObject *count = PyNumber_Multiply(arguments[4], arguments[5]);
    if (count == NULL) return NULL;
    PyObject *const of_result[] = {arguments[0], count, arguments[1]};
    PyObject *const of_reference[] = {arguments[2], count, arguments[3]};
    int are_good = memory_of(of_result, &result) && memory_of(of_reference, &reference);
    Py_DECREF(count);
    if (!are_good) return NULL;
    double *by_row = PyLong_AsVoidPtr(arguments[6]), *by_column = PyLong_AsVoidPtr(arguments[7]);
    ErrorTerms terms = {PyFloat_AsDouble(arguments[8]), PyFloat_AsDouble(arguments[9]),
                        PyFloat_AsDouble(arguments[10]), PyFloat_AsDouble(arguments[11])};
    if (PyErr_Occurred()) return NULL;
    if (by_row == NULL || by_column == NULL) return refuse("There are no sums at this address.");
    RUN_KERNEL(result, error_sums(result.address, result.kind->widening, reference.address,
                                  reference.kind->widening, rows, columns, &terms, by_row, by_column, &f));
    return Py_BuildValue("(dddKKKK)", f.largest, f.largest_error, f.squares, f.place, f.absent, f.mismatched,
                         f.beyond);
}

static PyObject *sketch(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory memory;
    unsigned char out[4 * BLOCK];
    if (given != 3) return refuse("sketch takes an address, a count and a kind.");
    if (!memory_of(arguments, &memory)) return NULL;
    RUN_KERNEL(memory, sketch_of(memory, out));
    return PyBytes_FromStringAndSize((const char *)out, sizeof out);
}

static PyObject *sketch_add(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    Memory memory;
    if (given != 5) return refuse("sketch_add takes the address of sums, a block, an address, a count and a kind.");
    double (*sums)[BLOCK] = PyLong_AsVoidPtr(arguments[0]);
    uint64_t first = PyLong_AsUnsignedLongLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (sums == NULL) return refuse("There are no sums at this address.");
    if (!memory_of(arguments + 2, &memory)) return NULL;
    RUN_KERNEL(memory, memory.kind->sketch(memory.address, memory.count, first, sums));
    Py_RETURN_NONE;
}

static PyObject *sketch_end(PyObject *module, PyObject *address)
{
    (void)module;
    unsigned char out[4 * BLOCK];
    double (*sums)[BLOCK] = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred()) return NULL;
    if (sums == NULL) return refuse("There are no sums at this address.");
    Environment before = environment_default();
    fold(sums, out);
    environment_restore(before);
    return PyBytes_FromStringAndSize((const char *)out, sizeof out);
}

static PyObject *glance(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    enum { WORDS = 16 };
    if (given != 2) return refuse("glance takes an address and a number of bytes.");
    const unsigned char *start = PyLong_AsVoidPtr(arguments[0]);
    Py_ssize_t size = PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (size < 0 || (size > 0 && start == NULL)) return refuse("There is no memory at this address.");
    uint64_t hash = (uint64_t)size, word = 0;
    size_t last = size < 8 ? 0 : (size_t)size - 8, length = size < 8 ? (size_t)size : 8;
    for (size_t i = 0; i < (last > 0 ? WORDS : 1); i++) {
        memcpy(&word, start + last / (WORDS - 1) * i + last % (WORDS - 1) * i / (WORDS - 1), length);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *pack(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 3) return refuse("pack takes an address, a number of bytes and how many it may become.");
    const unsigned char *start = PyLong_AsVoidPtr(arguments[0]);
    Py_ssize_t size = PyLong_AsSsize_t(arguments[1]), most = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    if (size < 0 || most < 0 || (size > 0 && start == NULL)) return refuse("There is no memory at this address.");
    if (!has_runs(start, (size_t)size / WORD)) Py_RETURN_NONE;
    Packed p = {malloc((size_t)most + 1), 0, (size_t)most, 0, 0};
    if (p.out == NULL) return PyErr_NoMemory();
    PyThreadState *thread = PyEval_SaveThread();
    pack_runs(&p, start, (size_t)size);
    PyEval_RestoreThread(thread);
    PyObject *packed = Py_None;
    if (p.used <= p.room) packed = PyBytes_FromStringAndSize((const char *)p.out, (Py_ssize_t)p.used);
    else Py_INCREF(packed);
    free(p.out);
    return packed;
}

static PyMethodDef METHODS[] = {
    {"statistics", (PyCFunction)(void (*)(void))statistics, METH_FASTCALL, "(type, address, count, kind)"},
    {"described", (PyCFunction)(void (*)(void))described, METH_FASTCALL,
     "(type, address, count, kind, is_whole)"},
    {"hash_part", (PyCFunction)(void (*)(void))hash_part, METH_FASTCALL, "(address, size)"},
    {"pair", (PyCFunction)(void (*)(void))pair, METH_FASTCALL,
     "(type, target, target_kind, golden, golden_kind, count)"},
    {"error", (PyCFunction)(void (*)(void))error, METH_FASTCALL,
     "(result, result_kind, reference, reference_kind, rows, columns, by_row, by_column, scale, overflow, relative, "
     "absolute)"},
    {"sketch", (PyCFunction)(void (*)(void))sketch, METH_FASTCALL, "(address, count, kind)"},
    {"sketch_add", (PyCFunction)(void (*)(void))sketch_add, METH_FASTCALL, "(sums, first, address, count, kind)"},
    {"sketch_end", sketch_end, METH_O, "(sums)"},
    {"brief", (PyCFunction)(void (*)(void))brief, METH_FASTCALL, "(address, count, kind)"},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, "(address, size, most)"},
    {"clear_upper", clear_upper, METH_NOARGS, "()"},
    {"glance", (PyCFunction)(void (*)(void))glance, METH_FASTCALL, "(address, size)"},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot SLOTS[] = {{0, NULL}};
static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "msprobe._kernels",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    hash_prepare();
    return PyModuleDef_Init(&MODULE);
}
