/* Two tensors, element by element, in one pass: the sums, peaks and counts that each metric of a comparison
 * is made of. msprobe/kernels_numpy.py and kernels_error.py hold the same definitions in numpy, and add in the
 * same order. */
#include "_widen.h"

/* So few lanes, because nine numbers are kept in each, and all of them should stay in registers; the division
 * takes longer than an addition, so more lanes would not be faster. A part of both sides as doubles fits into
 * the nearest cache. */
enum { LANES = 4, PART = 1024 };

/* A golden 0 cannot divide: both sides grow by this first. */
static const double EPSILON = 0x1p-52;

/* ---- one part of each side as doubles ---- */

#define WIDEN_KIND(KIND, TYPE, VALUE, ROUNDS)                                                                \
    KERNEL void values_##KIND(const TYPE *restrict from, size_t count, double *restrict to)                  \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++) to[i] = (double)VALUE(from[i]);                                   \
    }                                                                                                        \
    static void widen_##KIND(const void *from, size_t count, double *to) { values_##KIND(from, count, to); } \
    const Widening widening_##KIND = {sizeof(TYPE), ROUNDS, widen_##KIND};

INLINE uint8_t truth(uint8_t x) { return x != 0; }

WIDEN_KIND(bf2, uint16_t, wide_bf2, 0)
WIDEN_KIND(f4, float, wide_f4, 0)
WIDEN_KIND(f8, double, wide_f8, 0)
WIDEN_KIND(b1, uint8_t, truth, 0)
WIDEN_KIND(i1, int8_t, , 0)
WIDEN_KIND(u1, uint8_t, , 0)
WIDEN_KIND(i2, int16_t, , 0)
WIDEN_KIND(u2, uint16_t, , 0)
WIDEN_KIND(i4, int32_t, , 0)
WIDEN_KIND(u4, uint32_t, , 0)
WIDEN_KIND(i8, int64_t, , 1)
WIDEN_KIND(u8, uint64_t, , 1)

static void widen_half(const void *from, size_t count, double *to)
{
    float singles[PART];
    widen_f2(from, count, singles);
    values_f4(singles, count, to);
}
const Widening widening_f2 = {sizeof(uint16_t), 0, widen_half};

typedef struct {
    const Widening *kind;
    const void *raw; /* aligned, and whole lanes of it */
    _Alignas(64) double values[PART];
    _Alignas(64) unsigned char copy[PART * 8];
} Side;

/* Memory is read where it lies; copied only if it is not aligned, or zeros must fill the last lanes. */
static void side_read(Side *side, const unsigned char *start, size_t count, size_t padded)
{
    size_t size = side->kind->size;
    side->raw = start;
    if (count == padded && (uintptr_t)start % size == 0) return;
    memcpy(side->copy, start, count * size);
    memset(side->copy + count * size, 0, (padded - count) * size);
    side->raw = side->copy;
}

/* ---- the sums of one part ---- */

/* Vectors by name, because compilers do not find them in a loop with nine results; a comparison gives -1
 * where it holds. Macros, because as an argument a vector has another ABI on each instruction set. */
typedef double Doubles __attribute__((vector_size(8 * LANES), may_alias));
typedef int64_t Words __attribute__((vector_size(8 * LANES), may_alias));

#define WHERE(MASK, X) ((Doubles)((MASK) & (Words)(X)))
#define MAGNITUDE(X) ((Doubles)((Words)(X) & INT64_MAX))
#define LARGER(X, Y) ((Doubles)((((X) > (Y)) & (Words)(X)) | (~((X) > (Y)) & (Words)(Y))))
#define SUM(X) (((X)[0] + (X)[2]) + ((X)[1] + (X)[3]))
#define COUNT(X) (uint64_t)(-SUM(X))
#define LARGEST(X) larger(larger((X)[0], (X)[2]), larger((X)[1], (X)[3]))

INLINE double larger(double x, double y) { return x > y ? x : y; }

/* Here and below `count` is a multiple of LANES. */
KERNEL void measure(const double *target, const double *golden, size_t count, PairSums *out)
{
    const Doubles zero = {0}, epsilon = zero + EPSILON;
    Doubles dot = zero, of_target = zero, of_golden = zero, of_both = zero;
    Doubles max_abs = zero, max_relative = zero;
    Words one = {0}, five = {0}, unequal = {0};
    for (size_t i = 0; i < count; i += LANES) {
        Doubles t = *(const Doubles *)(target + i), g = *(const Doubles *)(golden + i);
        Doubles difference = t - g, distance = MAGNITUDE(difference), more = WHERE(g == zero, epsilon);
        Doubles relative = MAGNITUDE(((t + more) - (g + more)) / (g + more));
        dot += t * g;
        of_target += t * t;
        of_golden += g * g;
        of_both += difference * difference;
        max_abs = LARGER(distance, max_abs);
        max_relative = LARGER(relative, max_relative);
        one += relative < 0.001;
        five += relative < 0.005;
        unequal += t != g;
    }
    *out = (PairSums){SUM(dot),         SUM(of_target),        SUM(of_golden), SUM(of_both),
                      LARGEST(max_abs), LARGEST(max_relative), COUNT(one),     COUNT(five),
                      COUNT(unequal),   0,                     0};
}

KERNEL double squares(const double *x, size_t count)
{
    Doubles sums = {0};
    for (size_t i = 0; i < count; i += LANES) sums += *(const Doubles *)(x + i) * *(const Doubles *)(x + i);
    return SUM(sums);
}

/* What is NaN or infinite on either side becomes 0 on both. */
KERNEL void take_odd(double *target, double *golden, size_t count, PairSums *out)
{
    const Words inf = (Words){0} + 0x7FF0000000000000;
    Words mismatched = {0}, opposite = {0};
    for (size_t i = 0; i < count; i += LANES) {
        Words *t = (Words *)(void *)(target + i), *g = (Words *)(void *)(golden + i);
        Words of_t = *t & INT64_MAX, of_g = *g & INT64_MAX, finite = (of_t < inf) & (of_g < inf);
        mismatched += ((of_t > inf) ^ (of_g > inf)) | ((of_t == inf) ^ (of_g == inf));
        opposite += (of_t == inf) & (of_g == inf) & (*t != *g);
        *t &= finite;
        *g &= finite;
    }
    out->mismatched = COUNT(mismatched), out->opposite = COUNT(opposite);
}

/* Integers that become the same double may differ. */
static uint64_t unequal_words(const uint64_t *x, const uint64_t *y, size_t count)
{
    uint64_t unequal = 0;
    for (size_t i = 0; i < count; i++) unequal += x[i] != y[i];
    return unequal;
}

static void measure_part(Side *target, Side *golden, size_t count, PairSums *out)
{
    double *t = target->values, *g = golden->values;
    int same = target->kind == golden->kind;
    PairSums odd = {0};
    target->kind->widen(target->raw, count, t);
    if (same && memcmp(target->raw, golden->raw, count * target->kind->size) == 0) {
        double sum = squares(t, count);
        if (!(sum < INFINITY)) take_odd(t, t, count, &odd), sum = squares(t, count);
        *out = (PairSums){sum, sum, sum, 0, 0, 0, count, count, 0, 0, 0};
        return;
    }
    golden->kind->widen(golden->raw, count, g);
    measure(t, g, count, out);
    /* Squares may also overflow; then this gives the same again. */
    if (!(out->target_squares + out->golden_squares < INFINITY)) {
        take_odd(t, g, count, &odd);
        measure(t, g, count, out);
        out->mismatched = odd.mismatched, out->opposite = odd.opposite;
        out->unequal += odd.mismatched + odd.opposite;
    }
    if (same && target->kind->rounds) out->unequal = unequal_words(target->raw, golden->raw, count);
}

void pair_sums(const void *target, const Widening *target_kind, const void *golden,
               const Widening *golden_kind, size_t count, PairSums *sums)
{
    Side sides[2];
    const unsigned char *t = target, *g = golden;
    sides[0].kind = target_kind, sides[1].kind = golden_kind;
    for (size_t i = 0; i < count; i += PART) {
        size_t length = count - i < PART ? count - i : PART, padding = (LANES - length % LANES) % LANES;
        PairSums part;
        side_read(&sides[0], t + i * sides[0].kind->size, length, length + padding);
        side_read(&sides[1], g + i * sides[1].kind->size, length, length + padding);
        measure_part(&sides[0], &sides[1], length + padding, &part);
        sums->dot += part.dot;
        sums->target_squares += part.target_squares;
        sums->golden_squares += part.golden_squares;
        sums->difference_squares += part.difference_squares;
        sums->max_abs = larger(part.max_abs, sums->max_abs);
        sums->max_relative = larger(part.max_relative, sums->max_relative);
        sums->thousandth += part.thousandth - padding; /* a pair of zeros counts as near */
        sums->five_thousandths += part.five_thousandths - padding;
        sums->unequal += part.unequal;
        sums->mismatched += part.mismatched;
        sums->opposite += part.opposite;
    }
}

/* ---- the error of a result by row and by column ---- */

/* Each number as a vector that may lie anywhere. */
typedef double Loose __attribute__((vector_size(8 * LANES), may_alias, aligned(8)));

KERNEL int has_odd(const double *result, const double *reference, size_t count)
{
    const Words inf = (Words){0} + 0x7FF0000000000000;
    Words odd = {0};
    for (size_t i = 0; i < count; i += LANES) {
        Words y = *(const Words *)(const void *)(result + i), g = *(const Words *)(const void *)(reference + i);
        odd |= ((y & INT64_MAX) >= inf) | ((g & INT64_MAX) >= inf);
    }
    return (odd[0] | odd[1] | odd[2] | odd[3]) != 0;
}

/* What is NaN or infinite on a side becomes 0 on both. */
static void leave_out_odd(double *result, double *reference, size_t count, ErrorFound *found)
{
    for (size_t i = 0; i < count; i++) {
        double y = result[i], g = reference[i];
        if (isfinite(y) && isfinite(g)) continue;
        found->absent++;
        found->mismatched += y != g && !(isnan(y) && isnan(g));
        result[i] = reference[i] = 0;
    }
}

static void overflow_above(double limit, double *reference, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fabs(reference[i]) > limit) reference[i] *= INFINITY;
}

static uint64_t errors_beyond(const ErrorTerms *terms, const double *result, const double *reference, size_t count)
{
    uint64_t beyond = 0;
    for (size_t i = 0; i < count; i++)
        beyond += !(fabs(result[i] - reference[i]) <= terms->relative * fabs(reference[i]) + terms->absolute);
    return beyond;
}

typedef struct {
    _Alignas(64) Doubles sums[ERROR_SUMS];
    Doubles squares, largest, largest_error;
} RowSums;

/* Adds one term of a vector of errors to the sum of its row and to those of its columns. */
#define ADD_TERM(NUMBER, TERM)                                                                               \
    do {                                                                                                     \
        Doubles term = (TERM);                                                                               \
        sum_##NUMBER += term;                                                                                \
        *(Loose *)(columns + NUMBER * stride + i) += term;                                                   \
    } while (0)

/* Some numbers of one row, and of the columns of which `stride` lie in a row. The sums have names, because an
 * array of them would not stay in registers. */
KERNEL void add_errors(const double *restrict result, const double *restrict reference, size_t count, double factor,
                       RowSums *restrict row, double *restrict columns, size_t stride)
{
    const Doubles scale = (Doubles){0} + factor;
    Doubles sum_0 = row->sums[0], sum_1 = row->sums[1], sum_2 = row->sums[2];
    Doubles sum_3 = row->sums[3], sum_4 = row->sums[4], sum_5 = row->sums[5];
    Doubles squares = row->squares, largest = row->largest, largest_error = row->largest_error;
    for (size_t i = 0; i < count; i += LANES) {
        Doubles g = *(const Doubles *)(reference + i), e = *(const Doubles *)(result + i) - g;
        largest = LARGER(MAGNITUDE(g), largest);
        largest_error = LARGER(MAGNITUDE(e), largest_error);
        g *= scale, e *= scale;
        Doubles product = e * g, square = g * g;
        squares += e * e;
        ADD_TERM(0, product);
        ADD_TERM(1, square);
        ADD_TERM(2, e);
        ADD_TERM(3, product * product);
        ADD_TERM(4, product * square);
        ADD_TERM(5, square * square);
    }
    *row = (RowSums){{sum_0, sum_1, sum_2, sum_3, sum_4, sum_5}, squares, largest, largest_error};
}

static size_t place_of(double error, const double *result, const double *reference)
{
    size_t i = 0;
    while (fabs(result[i] - reference[i]) != error) i++;
    return i;
}

void error_sums(const void *result, const Widening *result_kind, const void *reference,
                const Widening *reference_kind, size_t rows, size_t columns, const ErrorTerms *terms,
                double *by_row, double *by_column, ErrorFound *found)
{
    Side sides[2];
    double *y = sides[0].values, *g = sides[1].values;
    size_t stride = (columns + LANES - 1) / LANES * LANES;
    sides[0].kind = result_kind, sides[1].kind = reference_kind;
    for (size_t row = 0; row < rows; row++) {
        RowSums sums = {0};
        for (size_t i = 0; i < columns; i += PART) {
            size_t length = columns - i < PART ? columns - i : PART, start = row * columns + i;
            size_t padded = (length + LANES - 1) / LANES * LANES;
            side_read(&sides[0], (const unsigned char *)result + start * result_kind->size, length, padded);
            side_read(&sides[1], (const unsigned char *)reference + start * reference_kind->size, length, padded);
            result_kind->widen(sides[0].raw, padded, y);
            reference_kind->widen(sides[1].raw, padded, g);
            if (terms->overflow < INFINITY) overflow_above(terms->overflow, g, length);
            if (has_odd(y, g, padded)) leave_out_odd(y, g, length, found);
            if (terms->absolute < INFINITY) found->beyond += errors_beyond(terms, y, g, length);
            add_errors(y, g, padded, terms->scale, &sums, by_column + i, stride);
            if (LARGEST(sums.largest_error) > found->largest_error) {
                found->largest_error = LARGEST(sums.largest_error);
                found->place = start + place_of(found->largest_error, y, g);
            }
        }
        for (size_t n = 0; n < ERROR_SUMS; n++) by_row[n * rows + row] = SUM(sums.sums[n]);
        found->squares += SUM(sums.squares);
        found->largest = larger(LARGEST(sums.largest), found->largest);
    }
}
