/* Types and reductions. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

enum type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
enum reduction { SUM, PROD, MAX, MIN, AVG };

size_t type_size(int type)
{
    static const size_t sizes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type < 0 || type >= TYPES ? 0 : sizes[type];
}

#define EACH(type, expression)                    \
    do {                                          \
        type *a = into;                           \
        const type *b = with;                     \
        for (size_t i = 0; i < count; i++)        \
            a[i] = (type)(expression);            \
    } while (0)

#define BY_REDUCTION(type)                                    \
    do {                                                      \
        if (reduction == PROD)                                \
            EACH(type, a[i] * b[i]);                          \
        else if (reduction == MAX)                            \
            EACH(type, a[i] > b[i] ? a[i] : b[i]);            \
        else if (reduction == MIN)                            \
            EACH(type, a[i] < b[i] ? a[i] : b[i]);            \
        else                                                  \
            EACH(type, a[i] + b[i]);                          \
    } while (0)

static float widened(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static uint16_t narrowed(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

static void combine_bfloat16(uint16_t *into, const uint16_t *with, size_t n, int reduction)
{
    for (size_t i = 0; i < n; i++) {
        float one = widened(into[i]), other = widened(with[i]), *a = &one, *b = &other;
        float result = reduction == PROD ? *a * *b : reduction == MAX ? (*a > *b ? *a : *b)
                     : reduction == MIN ? (*a < *b ? *a : *b) : *a + *b;
        into[i] = narrowed(result);
    }
}

void combine(void *into, const void *with, size_t count, int type, int reduction)
{
    switch (type) {
    case INT8: BY_REDUCTION(int8_t); break;
    case UINT8: BY_REDUCTION(uint8_t); break;
    case INT32: BY_REDUCTION(int32_t); break;
    case UINT32: BY_REDUCTION(uint32_t); break;
    case INT64: BY_REDUCTION(int64_t); break;
    case UINT64: BY_REDUCTION(uint64_t); break;
    case FLOAT16: BY_REDUCTION(_Float16); break;
    case FLOAT32: BY_REDUCTION(float); break;
    case FLOAT64: BY_REDUCTION(double); break;
    case BFLOAT16: combine_bfloat16(into, with, count, reduction); break;
    }
}

#define DIVIDE(type)                           \
    do {                                       \
        type *a = values;                      \
        for (size_t i = 0; i < count; i++)     \
            a[i] = (type)(a[i] / (type)by);    \
    } while (0)

void divide(void *values, size_t count, int type, int by)
{
    uint16_t *narrow = values;
    switch (type) {
    case INT8: DIVIDE(int8_t); break;
    case UINT8: DIVIDE(uint8_t); break;
    case INT32: DIVIDE(int32_t); break;
    case UINT32: DIVIDE(uint32_t); break;
    case INT64: DIVIDE(int64_t); break;
    case UINT64: DIVIDE(uint64_t); break;
    case FLOAT16: DIVIDE(_Float16); break;
    case FLOAT32: DIVIDE(float); break;
    case FLOAT64: DIVIDE(double); break;
    case BFLOAT16:
        for (size_t i = 0; i < count; i++)
            narrow[i] = narrowed(widened(narrow[i]) / (float)by);
        break;
    }
}
