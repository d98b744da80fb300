/* Compares a kernel's output with what was expected, at memory speed on a small board.
 *
 * Elements are taken in blocks. A block is first reduced without branches, on the bits of the magnitudes: for
 * IEEE numbers these order like integers, with infinities above every finite number and NaNs above those, so
 * that a vectorized integer maximum finds everything that matters. Only a block that holds a new worst element, or
 * anything not finite, is looked at again element by element.
 */
#include "tfb.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(tfb_difference) == 32, "the device runtime declares this structure too");

enum { BLOCK = 1024 };

/* One element into *d; want and got as double, which holds every float and int32 exactly. */
static void compare_element(double got, double want, int64_t index, tfb_difference *d) {
    double error;
    if (isfinite(want)) {
        if (fabs(want) > d->max_abs_reference) d->max_abs_reference = fabs(want);
        if (!isfinite(got)) {
            if (d->not_finite++ == 0) d->worst_index = index;
            return;
        }
        error = fabs(got - want);
    } else {
        error = got == want || (isnan(got) && isnan(want)) ? 0 : (double)INFINITY;
    }
    if (error > d->max_abs_error) {
        d->max_abs_error = error;
        if (d->not_finite == 0) d->worst_index = index;
    }
}

/* Defines compare_NAME over the element type REAL, whose bits fit BITS and whose infinity has the bits INF. */
#define DEFINE_COMPARE(NAME, REAL, BITS, INF)                                                                \
    static BITS magnitude_##NAME(REAL value) {                                                               \
        BITS bits;                                                                                           \
        memcpy(&bits, &value, sizeof bits);                                                                  \
        return bits & (BITS)(((uint64_t)1 << (8 * sizeof(BITS) - 1)) - 1);                                   \
    }                                                                                                        \
    static REAL real_##NAME(BITS bits) {                                                                     \
        REAL value;                                                                                          \
        memcpy(&value, &bits, sizeof value);                                                                 \
        return value;                                                                                        \
    }                                                                                                        \
    int32_t tfb_compare_##NAME(const REAL *got, const REAL *want, int64_t n, tfb_difference *difference) {   \
        tfb_difference d = {.worst_index = -1};                                                              \
        if (n < 0 || !difference || (n > 0 && (!got || !want))) return TFB_ERROR_ARGUMENT;                   \
        for (int64_t first = 0; first < n; first += BLOCK) {                                                 \
            int64_t end = n - first < BLOCK ? n : first + BLOCK;                                             \
            BITS error = 0, reference = 0;                                                                   \
            for (int64_t i = first; i < end; i++) {                                                          \
                BITS e = magnitude_##NAME(got[i] - want[i]), w = magnitude_##NAME(want[i]);                  \
                error = e > error ? e : error;                                                               \
                reference = w > reference ? w : reference;                                                   \
            }                                                                                                \
            if (error >= INF || reference >= INF || (double)real_##NAME(error) > d.max_abs_error) {          \
                for (int64_t i = first; i < end; i++)                                                        \
                    compare_element((double)got[i], (double)want[i], i, &d);                                 \
            } else if ((double)real_##NAME(reference) > d.max_abs_reference) {                               \
                d.max_abs_reference = (double)real_##NAME(reference);                                        \
            }                                                                                                \
        }                                                                                                    \
        *difference = d;                                                                                     \
        return 0;                                                                                            \
    }

DEFINE_COMPARE(f32, float, int32_t, 0x7f800000)
DEFINE_COMPARE(f64, double, int64_t, 0x7ff0000000000000)

int32_t tfb_compare_f16(const uint16_t *got, const uint16_t *want, int64_t n, tfb_difference *difference) {
    tfb_difference d = {.worst_index = -1};
    if (n < 0 || !difference || (n > 0 && (!got || !want))) return TFB_ERROR_ARGUMENT;
    for (int64_t i = 0; i < n; i++) compare_element(tfb_of_half(got[i]), tfb_of_half(want[i]), i, &d);
    *difference = d;
    return 0;
}

static float of_bfloat16(uint16_t bits) { /* the upper half of a float's */
    uint32_t whole = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &whole, sizeof number);
    return number;
}

int32_t tfb_compare_bf16(const uint16_t *got, const uint16_t *want, int64_t n, tfb_difference *difference) {
    tfb_difference d = {.worst_index = -1};
    if (n < 0 || !difference || (n > 0 && (!got || !want))) return TFB_ERROR_ARGUMENT;
    for (int64_t i = 0; i < n; i++) compare_element(of_bfloat16(got[i]), of_bfloat16(want[i]), i, &d);
    *difference = d;
    return 0;
}

int32_t tfb_compare_i32(const int32_t *got, const int32_t *want, int64_t n, tfb_difference *difference) {
    tfb_difference d = {.worst_index = -1};
    if (n < 0 || !difference || (n > 0 && (!got || !want))) return TFB_ERROR_ARGUMENT;
    for (int64_t i = 0; i < n; i++) compare_element((double)got[i], (double)want[i], i, &d);
    *difference = d;
    return 0;
}
