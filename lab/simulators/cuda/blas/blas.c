/* libcublas: matrix products that take their time and heat the GPU. A product of up to SMALL multiplications is really
 * computed, of a larger one the first CORNER rows and columns; C of 16 bits is left as it is. Of vectors the first LONG
 * elements are computed, which contain that corner.
 *
 * TF32 is a compute type of floats: from Ampere on their mantissa has 10 bits, and products take twice the time of those of
 * 16 bits (NVIDIA's white papers of A100, GA102 and H100); on older GPUs it changes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../loader.h"

enum status { OK = 0, NOT_READY_YET = 1, ALLOC_FAILED = 3, BAD_VALUE = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };
enum type { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 14, TF32 = 100 }; /* TF32: of our own, no cudaDataType */
enum compute { COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71, COMPUTE_32F_FAST_TF32 = 77 };

#define SMALL (1 << 24)
#define CORNER 4
#define LONG (1 << 16)
#define DEVICES 64
#define QUEUE_NS 300000000
#define SHARE_OF_PEAK 0.9
#define LAUNCH_NS 4000
#define VECTOR_EFFORT 30 /* percent of full power (assumed) */

struct handle {
    const struct engine *cuda;
    int device, on_device; /* on_device: results are written to memory of the GPU, and nobody waits for them */
    struct stream *stream;
};

struct matrix {
    const void *at;
    int transposed, leading, type;
};

EXPORT enum status cublasCreate_v2(struct handle **out)
{
    int code;
    const struct engine *cuda = engine(&code);
    if (!out)
        return BAD_VALUE;
    if (!cuda || cuda->enter(cuda->current()))
        return NOT_READY_YET;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ALLOC_FAILED;
    (*out)->cuda = cuda;
    (*out)->device = cuda->current();
    return OK;
}

EXPORT enum status cublasDestroy_v2(struct handle *handle)
{
    free(handle);
    return handle ? OK : NOT_READY_YET;
}

EXPORT enum status cublasSetStream_v2(struct handle *handle, struct stream *stream)
{
    if (!handle)
        return NOT_READY_YET;
    handle->stream = stream;
    return OK;
}

EXPORT enum status cublasGetStream_v2(struct handle *handle, struct stream **out)
{
    if (!handle)
        return NOT_READY_YET;
    *out = handle->stream;
    return OK;
}

EXPORT enum status cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    if (!handle)
        return NOT_READY_YET;
    handle->on_device = mode == 1;
    return mode == 0 || mode == 1 ? OK : BAD_VALUE;
}

EXPORT enum status cublasSetMathMode(struct handle *handle, int mode)
{
    (void)mode;
    return handle ? OK : NOT_READY_YET;
}

EXPORT enum status cublasGetVersion_v2(struct handle *handle, int *out)
{
    (void)handle;
    *out = CUBLAS_VERSION;
    return OK;
}

/* Operations per nanosecond, at the clock that limits and temperature leave. */
static double rate(const struct handle *handle, int type)
{
    const struct engine *cuda = handle->cuda;
    double mhz = cuda->clock_mhz(handle->device), cores = (double)cuda->device_number(handle->device, "cores", 2048);
    double top_mhz = (double)cuda->device_number(handle->device, "clock.graphics_max", 1500);
    const char *known = cuda->device_text(handle->device, "tflops_fp32");
    double flops = known ? strtod(known, NULL) * 1000 * mhz / top_mhz : cores * 2 * mhz / 1000;
    double tensor = (double)cuda->device_number(handle->device, "tensor_factor", 1);
    if (type == FLOAT16 || type == BFLOAT16)
        flops *= tensor;
    if (type == TF32)
        flops *= tensor > 2 ? tensor / 2 : 1;
    if (type == FLOAT64)
        flops /= (double)cuda->device_number(handle->device, "double_divisor", 32);
    return SHARE_OF_PEAK * flops * (double)cuda->device_number(handle->device, "speed_percent", 100) / 100;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static float of_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return (float)(bits & 0x8000 ? -value : value);
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double element(const struct matrix *matrix, int row, int column)
{
    size_t at = matrix->transposed ? (size_t)row * (size_t)matrix->leading + (size_t)column
                                   : (size_t)column * (size_t)matrix->leading + (size_t)row;
    switch (matrix->type) {
    case FLOAT64: return ((const double *)matrix->at)[at];
    case FLOAT16: return of_half(((const uint16_t *)matrix->at)[at]);
    case BFLOAT16: return of_bits((uint32_t)((const uint16_t *)matrix->at)[at] << 16);
    case TF32: return of_bits(((const uint32_t *)matrix->at)[at] & 0xffffe000u);
    default: return ((const float *)matrix->at)[at];
    }
}

/* C may hold anything when beta is 0. */
static void store(const struct matrix *c, int row, int column, double alpha, double sum, double beta)
{
    size_t at = (size_t)column * (size_t)c->leading + (size_t)row;
    if (c->type == FLOAT64) {
        double *out = &((double *)(uintptr_t)c->at)[at];
        *out = alpha * sum + (beta != 0 ? beta * *out : 0);
    } else if (c->type == FLOAT32) {
        float *out = &((float *)(uintptr_t)c->at)[at];
        *out = (float)alpha * (float)sum + (beta != 0 ? (float)beta * *out : 0);
    }
}

/* Sums of the corner of the last large product of each device. They hold while A and B are as they were: nothing was written
 * but results of products, to elsewhere. */
struct kept {
    int valid, k;
    struct matrix a, b;
    double sums[CORNER][CORNER];
};
static struct kept corners[DEVICES];
static unsigned long seen_writes, forgotten;

static int same(const struct matrix *one, const struct matrix *other)
{
    return one->at == other->at && one->transposed == other->transposed && one->leading == other->leading && one->type == other->type;
}

static int overlaps(const struct matrix *matrix, const struct matrix *c, int n)
{
    const char *start = c->at, *end = start + (size_t)n * (size_t)c->leading * 8, *at = matrix->at;
    return at >= start && at < end;
}

/* Forgets all sums when something else was written, and those whose factors this product writes to. Under the lock. */
static void forget_corners(const struct engine *cuda, const struct matrix *c, int n)
{
    int others = cuda->writes() != seen_writes;
    for (int i = 0; i < DEVICES; i++)
        if (others || overlaps(&corners[i].a, c, n) || overlaps(&corners[i].b, c, n))
            corners[i].valid = 0;
    forgotten += (unsigned long)others;
    cuda->repeats(NULL, NULL, 0);
    seen_writes = cuda->writes();
}

/* Each row of A and column of B is read once; floats are summed as floats. */
static void compute(int rows, int columns, int k, double alpha, const struct matrix *a, const struct matrix *b, double beta,
                    const struct matrix *c, struct kept *kept)
{
    for (int from_row = 0; from_row < rows; from_row += CORNER)
        for (int from = 0; from < columns; from += CORNER) {
            double sums[CORNER][CORNER] = {{0}};
            int high = least(CORNER, rows - from_row), wide = least(CORNER, columns - from);
            for (int i = 0; i < k; i++) {
                double left[CORNER], right[CORNER];
                for (int row = 0; row < high; row++)
                    left[row] = element(a, from_row + row, i);
                for (int column = 0; column < wide; column++)
                    right[column] = element(b, i, from + column);
                for (int row = 0; row < high; row++)
                    for (int column = 0; column < wide; column++)
                        sums[row][column] = c->type == FLOAT64
                                                ? sums[row][column] + left[row] * right[column]
                                                : (float)((float)sums[row][column] + (float)left[row] * (float)right[column]);
            }
            memcpy(kept->sums, sums, sizeof sums);
            for (int row = 0; row < high; row++)
                for (int column = 0; column < wide; column++)
                    store(c, from_row + row, from + column, alpha, sums[row][column], beta);
        }
}

/* gpuN.wrong_bit=100: of every hundredth product on the GPU one bit is wrong, in the corner that is computed anew. */
static void flip_bit(const struct handle *handle, const struct matrix *c, int rows, int columns)
{
    static long products[DEVICES];
    static const size_t size_of[] = {[FLOAT32] = 4, [FLOAT64] = 8, [FLOAT16] = 2, [BFLOAT16] = 2};
    long every = handle->cuda->device_number(handle->device, "wrong_bit", 0), number;
    handle->cuda->lock();
    number = ++products[handle->device % DEVICES];
    handle->cuda->unlock();
    if (every <= 0 || number % every || !rows || !columns)
        return;
    size_t size = size_of[c->type], at = (size_t)(number / every);
    size_t row = at % (size_t)rows, column = at / (size_t)rows % (size_t)columns;
    ((unsigned char *)(uintptr_t)c->at)[(column * (size_t)c->leading + row) * size + size - 2] ^= 0x10;
}

/* A launch waits while much work is queued, as it does in life: so the clock is that of the time when a product runs. */
static uint64_t start_of(const struct engine *cuda, struct stream *stream)
{
    struct timespec nap = {0, QUEUE_NS / 20};
    uint64_t start = cuda->stream_start(stream);
    while (start != NEVER && start > cuda->now() + QUEUE_NS) {
        nanosleep(&nap, NULL);
        start = cuda->stream_start(stream);
    }
    return start;
}

static int holds(const struct handle *handle, const struct matrix *matrix)
{
    return handle->cuda->holder(matrix->at) == handle->device;
}

static enum status product(struct handle *handle, int m, int n, int k, double alpha, const struct matrix *a,
                           const struct matrix *b, double beta, const struct matrix *c)
{
    if (!handle)
        return NOT_READY_YET;
    if (m < 0 || n < 0 || k < 0 || a->leading < (a->transposed ? k : m) || b->leading < (b->transposed ? n : k) ||
        c->leading < m)
        return BAD_VALUE;
    const struct engine *cuda = handle->cuda;
    struct stream *stream = cuda->resolve(handle->stream, handle->device);
    if (!stream || cuda->enter(handle->device) || !holds(handle, a) || !holds(handle, b) || !holds(handle, c))
        return EXECUTION_FAILED;
    double operations = 2.0 * m * n * k;
    uint64_t start = start_of(cuda, stream);
    cuda->stream_until(stream, start + LAUNCH_NS + (uint64_t)(operations / rate(handle, a->type)), 100);
    int whole = operations <= 2.0 * SMALL, rows = whole ? m : least(m, CORNER), columns = whole ? n : least(n, CORNER);
    struct kept *kept = &corners[handle->device % DEVICES];
    uint64_t began = cuda->real_now();
    cuda->lock();
    forget_corners(cuda, c, n);
    int known = !whole && kept->valid && kept->k == k && same(&kept->a, a) && same(&kept->b, b);
    for (int column = 0; known && column < columns; column++)
        for (int row = 0; row < rows; row++)
            store(c, row, column, alpha, kept->sums[row][column], beta);
    unsigned long before = forgotten;
    cuda->unlock();
    struct kept made = {.k = k, .a = *a, .b = *b};
    if (!known) {
        compute(rows, columns, k, alpha, a, b, beta, c, &made);
        cuda->lock();
        made.valid = !whole && forgotten == before && cuda->writes() == seen_writes;
        *kept = made;
        cuda->unlock();
    }
    cuda->moved(began);
    flip_bit(handle, c, rows, columns);
    return OK;
}

EXPORT enum status cublasSgemm_v2(struct handle *handle, int a_op, int b_op, int m, int n, int k, const float *alpha,
                                  const float *a, int a_leading, const float *b, int b_leading, const float *beta,
                                  float *c, int c_leading)
{
    struct matrix left = {a, a_op != 0, a_leading, FLOAT32}, right = {b, b_op != 0, b_leading, FLOAT32};
    struct matrix result = {c, 0, c_leading, FLOAT32};
    return product(handle, m, n, k, *alpha, &left, &right, *beta, &result);
}

static int has_tf32(const struct handle *handle)
{
    const char *text = handle->cuda->device_text(handle->device, "compute_capability");
    return text && strtol(text, NULL, 10) >= 8;
}

EXPORT enum status cublasGemmEx(struct handle *handle, int a_op, int b_op, int m, int n, int k, const void *alpha,
                                const void *a, int a_type, int a_leading, const void *b, int b_type, int b_leading,
                                const void *beta, void *c, int c_type, int c_leading, int compute_type, int algorithm)
{
    int wide = compute_type == COMPUTE_64F || compute_type == COMPUTE_64F_PEDANTIC, of_type = a_type;
    (void)algorithm;
    if (!handle)
        return NOT_READY_YET;
    if ((a_type != FLOAT32 && a_type != FLOAT64 && a_type != FLOAT16 && a_type != BFLOAT16) || a_type != b_type ||
        wide != (a_type == FLOAT64) || wide != (c_type == FLOAT64))
        return UNSUPPORTED;
    if (compute_type == COMPUTE_32F_FAST_TF32 && a_type == FLOAT32 && has_tf32(handle))
        of_type = TF32;
    struct matrix left = {a, a_op != 0, a_leading, of_type}, right = {b, b_op != 0, b_leading, of_type};
    struct matrix result = {c, 0, c_leading, c_type};
    double factor = wide ? *(const double *)alpha : *(const float *)alpha, kept = wide ? *(const double *)beta : *(const float *)beta;
    return product(handle, m, n, k, factor, &left, &right, kept, &result);
}

/* A function of vectors moves `passes` vectors of memory. */
static enum status vector(struct handle *handle, int n, int size, int passes, const void *x, const void *y)
{
    struct matrix first = {x, 0, 0, 0}, second = {y, 0, 0, 0};
    if (!handle)
        return NOT_READY_YET;
    const struct engine *cuda = handle->cuda;
    struct stream *stream = cuda->resolve(handle->stream, handle->device);
    if (!stream || cuda->enter(handle->device) || !holds(handle, &first) || !holds(handle, &second))
        return EXECUTION_FAILED;
    double gb_s = SHARE_OF_PEAK * (double)cuda->device_number(handle->device, "memory_gb_s", 500);
    cuda->stream_until(stream, start_of(cuda, stream) + LAUNCH_NS + (uint64_t)((double)n * size * passes / gb_s), VECTOR_EFFORT);
    cuda->repeats(NULL, NULL, 0);
    return OK;
}

#define OF_VECTORS(letter, type)                                                                                           \
    EXPORT enum status cublas##letter##copy_v2(struct handle *handle, int n, const type *x, int x_step, type *y, int y_step) \
    {                                                                                                                      \
        enum status status = x_step == 1 && y_step == 1 ? vector(handle, n, sizeof *x, 2, x, y) : UNSUPPORTED;              \
        if (!status)                                                                                                       \
            memmove(y, x, sizeof *x * (size_t)least(n, LONG));                                                             \
        return status;                                                                                                     \
    }                                                                                                                      \
    EXPORT enum status cublas##letter##axpy_v2(struct handle *handle, int n, const type *alpha, const type *x, int x_step, \
                                               type *y, int y_step)                                                       \
    {                                                                                                                      \
        enum status status = x_step == 1 && y_step == 1 ? vector(handle, n, sizeof *x, 3, x, y) : UNSUPPORTED;              \
        for (int i = 0; !status && i < least(n, LONG); i++)                                                                \
            y[i] += *alpha * x[i];                                                                                         \
        return status;                                                                                                     \
    }                                                                                                                      \
    EXPORT enum status cublas##letter##asum_v2(struct handle *handle, int n, const type *x, int x_step, type *out)         \
    {                                                                                                                      \
        enum status status = x_step == 1 ? vector(handle, n, sizeof *x, 1, x, x) : UNSUPPORTED;                            \
        *out = 0;                                                                                                          \
        for (int i = 0; !status && i < least(n, LONG); i++)                                                                \
            *out += (type)fabs((double)x[i]);                                                                              \
        if (!status && !handle->on_device && handle->cuda->stream_wait(handle->cuda->resolve(handle->stream, handle->device)))                   \
            status = EXECUTION_FAILED;                                                                                     \
        return status;                                                                                                     \
    }

OF_VECTORS(S, float)
OF_VECTORS(D, double)

EXPORT const char *cublasGetStatusString(int status)
{
    switch (status) {
    case OK: return "success";
    case NOT_READY_YET: return "the library was not initialized";
    case ALLOC_FAILED: return "the resource allocation failed";
    case BAD_VALUE: return "an unsupported value or parameter was passed to the function";
    case EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case UNSUPPORTED: return "the functionality is not supported";
    }
    return "unknown status";
}
