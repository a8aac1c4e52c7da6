/* What the C files share: how an element becomes a number, and how a loop over many becomes a kernel. */
#ifndef MSPROBE_WIDEN_H
#define MSPROBE_WIDEN_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if !defined(__GNUC__) || !defined(__SIZEOF_INT128__)
#error "This optional extension needs GCC or clang on a 64-bit machine; without it msprobe uses numpy."
#endif

/* target_clones needs ifunc, which of the x86 systems only glibc offers. */
#ifdef __has_attribute
#if __has_attribute(target_clones) && defined(__x86_64__) && defined(__GLIBC__)
#define KERNEL __attribute__((target_clones("avx2", "default"))) static
#endif
#endif
#ifndef KERNEL
#define KERNEL static
#endif
#define INLINE static inline __attribute__((always_inline))

/* ---- one element as a number ---- */

#define REINTERPRET(NAME, FROM, TO)                                                                          \
    INLINE TO NAME(FROM from)                                                                                \
    {                                                                                                        \
        TO to;                                                                                               \
        memcpy(&to, &from, sizeof to);                                                                       \
        return to;                                                                                           \
    }
REINTERPRET(float_of, uint32_t, float)
REINTERPRET(double_of, uint64_t, double)
REINTERPRET(bits_of_float, float, uint32_t)
REINTERPRET(bits_of_double, double, uint64_t)

INLINE float wide_f4(float x) { return x; }
INLINE double wide_f8(double x) { return x; }
INLINE float wide_bf2(uint16_t x) { return float_of((uint32_t)x << 16); }

#if defined(__aarch64__)
KERNEL void widen_f2_portable(const __fp16 *x, size_t count, float *wide)
{
    for (size_t i = 0; i < count; i++) wide[i] = x[i];
}
#else
/* Masks by shift, because choices do not vectorise here; and no subnormal single on the way, because some
 * processors are slow on it. */
INLINE float wide_f2(uint16_t x)
{
    uint32_t magnitude = (uint32_t)(x & 0x7FFF) << 13, sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t small = (uint32_t)((int32_t)(magnitude - 0x00800000u) >> 31);
    uint32_t not_finite = (uint32_t)((int32_t)(0x0F7FFFFFu - magnitude) >> 31);
    uint32_t normal = magnitude + 0x38000000u + (not_finite & 0x38000000u);
    uint32_t subnormal = bits_of_float(float_of(magnitude + 0x38800000u) - 0x1p-14f);
    return float_of((subnormal & small) | (normal & ~small) | sign);
}
KERNEL void widen_f2_portable(const uint16_t *x, size_t count, float *wide)
{
    for (size_t i = 0; i < count; i++) wide[i] = wide_f2(x[i]);
}
#endif

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static size_t widen_f2_f16c(const uint16_t *x, size_t count, float *wide)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    return i;
}
#endif

static inline void widen_f2(const uint16_t *x, size_t count, float *wide)
{
    size_t done = 0;
#if defined(__x86_64__)
    /* Each processor with AVX2 has F16C; older compilers cannot ask for F16C itself. */
    if (__builtin_cpu_supports("avx2")) done = widen_f2_f16c(x, count, wide);
#endif
    widen_f2_portable((const void *)(x + done), count - done, wide + done);
}

/* ---- what _pair.c gives ---- */

#define HIDDEN __attribute__((visibility("hidden"))) /* known to these files, not to the whole process */

typedef struct {
    size_t size; /* of one element */
    int rounds;  /* a double does not hold each value */
    void (*widen)(const void *from, size_t count, double *to); /* no more than one part at a time */
} Widening;

extern HIDDEN const Widening widening_f2, widening_bf2, widening_f4, widening_f8, widening_b1;
extern HIDDEN const Widening widening_i1, widening_i2, widening_i4, widening_i8;
extern HIDDEN const Widening widening_u1, widening_u2, widening_u4, widening_u8;

typedef struct {
    double dot, target_squares, golden_squares, difference_squares, max_abs, max_relative;
    unsigned long long thousandth, five_thousandths, unequal, mismatched, opposite;
} PairSums;

/* Adds to `sums`, which the caller starts at 0. */
HIDDEN void pair_sums(const void *target, const Widening *target_kind, const void *golden,
                      const Widening *golden_kind, size_t count, PairSums *sums);

/* What a result and its reference say about each other; metrics/errors.py has the formulas. */
typedef struct {
    double scale;              /* both are multiplied by this power of two before they are added up */
    double overflow;           /* a larger number of the reference counts as infinite */
    double relative, absolute; /* an error beyond relative * |reference| + absolute is counted */
} ErrorTerms;

typedef struct {
    double largest, largest_error, squares; /* of the reference; of the error, unscaled; of the scaled error */
    unsigned long long place, absent, mismatched, beyond;
} ErrorFound;

enum { ERROR_SUMS = 6 }; /* of e g, g g, e, e e g g, e g g g, g g g g */

/* `by_row`: each sum of all rows, one sum after the other. `by_column`: the same of all columns, whose number is
 * rounded up to a multiple of 4. The caller starts all of them, and `found`, at 0. */
HIDDEN void error_sums(const void *result, const Widening *result_kind, const void *reference,
                       const Widening *reference_kind, size_t rows, size_t columns, const ErrorTerms *terms,
                       double *by_row, double *by_column, ErrorFound *found);

/* ---- what _hash.c gives ---- */

enum { HASH_BLOCK = 4096 }; /* bytes; only the last part of a tensor may be no multiple of it */

HIDDEN void hash_prepare(void); /* once, before anything else */
HIDDEN uint64_t hash_add(uint64_t hash, const void *start, size_t bytes); /* of the part before, which starts at 0 */
HIDDEN uint64_t hash_end(uint64_t hash, uint64_t bytes);

#endif
