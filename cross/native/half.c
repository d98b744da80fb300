/* Half floats: their value, and on x86-64 the conversions that LLVM calls where the CPU has none: of floats before F16C,
 * of doubles before AVX512-FP16.
 *
 * They go by the bits. A half's bits 13 places higher are, as a float's, the value times 2^-112.
 */
#include "tfb.h"

#include <string.h>

float tfb_of_half(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    if (bits >= 0x0f800000) { /* infinity or NaN */
        bits |= 0x7f800000;
    } else {
        memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#ifdef __x86_64__

float __extendhfsf2(_Float16 half) {
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return tfb_of_half(bits);
}

/* Rounds to the nearest, to even between two. */
_Float16 __truncsfhf2(float value) {
    uint32_t bits, magnitude;
    uint16_t rounded;
    _Float16 half;
    memcpy(&bits, &value, sizeof bits);
    magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) { /* NaN */
        rounded = 0x7e00;
    } else if (magnitude >= 0x477ff000) { /* 65520: halfway beyond the largest */
        rounded = 0x7c00;
    } else if (magnitude < 0x38800000) { /* 2^-14: subnormal. The last place of 0.5 is that of these halves. */
        memcpy(&value, &magnitude, sizeof value);
        value += 0.5f;
        memcpy(&magnitude, &value, sizeof magnitude);
        rounded = (uint16_t)(magnitude - 0x3f000000);
    } else {
        magnitude += 0xfff + ((magnitude >> 13) & 1);
        rounded = (uint16_t)((magnitude - 0x38000000) >> 13);
    }
    rounded |= (uint16_t)(bits >> 16 & 0x8000);
    memcpy(&half, &rounded, sizeof half);
    return half;
}

/* By way of a float that is rounded to odd: cut off, its last bit set where anything was. It has more than two bits
 * beyond a half's, so the second rounding gives what a single one would (Boldo and Melquiond 2008, theorem 1).
 * F16C has no such conversion. */
_Float16 __truncdfhf2(double value) {
    float nearest = (float)value;
    uint32_t bits;
    if (value == value && (double)nearest != value) {
        memcpy(&bits, &nearest, sizeof bits);
        if ((nearest < 0 ? -(double)nearest : (double)nearest) > (value < 0 ? -value : value))
            bits -= 1; /* towards zero; the largest float from infinity */
        bits |= 1;
        memcpy(&nearest, &bits, sizeof nearest);
    }
    return __truncsfhf2(nearest);
}

#endif
