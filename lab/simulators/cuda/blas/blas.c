/* libcublas: matrix products that take their time and heat the GPU. A product of up to SMALL multiplications of floats is
 * really computed; a larger one, or one of another type, leaves C as it is. */
#include <stdlib.h>

#include "../loader.h"

enum status { OK = 0, NOT_READY_YET = 1, ALLOC_FAILED = 3, BAD_VALUE = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15 };
enum type { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 14 };

#define SMALL (1 << 24)
#define SHARE_OF_PEAK 0.9
#define LAUNCH_NS 4000

struct handle {
    const struct engine *cuda;
    int device;
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
    if (type == FLOAT64)
        flops /= (double)cuda->device_number(handle->device, "double_divisor", 32);
    return SHARE_OF_PEAK * flops;
}

static float element(const struct matrix *matrix, int row, int column)
{
    const float *values = matrix->at;
    return matrix->transposed ? values[(size_t)row * (size_t)matrix->leading + (size_t)column]
                              : values[(size_t)column * (size_t)matrix->leading + (size_t)row];
}

static void compute(int m, int n, int k, float alpha, const struct matrix *a, const struct matrix *b, float beta,
                    float *c, int leading)
{
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0, *out = &c[(size_t)column * (size_t)leading + (size_t)row];
            for (int i = 0; i < k; i++)
                sum += element(a, row, i) * element(b, i, column);
            *out = alpha * sum + (beta != 0 ? beta * *out : 0); /* C may hold anything when beta is 0 */
        }
}

static int holds(const struct handle *handle, const struct matrix *matrix)
{
    return handle->cuda->holder(matrix->at) == handle->device;
}

static enum status product(struct handle *handle, int m, int n, int k, const float *alpha, const struct matrix *a,
                           const struct matrix *b, const float *beta, const struct matrix *c)
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
    uint64_t start = cuda->stream_start(stream);
    cuda->stream_until(stream, start + LAUNCH_NS + (uint64_t)(operations / rate(handle, a->type)), 100);
    if (operations <= 2.0 * SMALL && a->type == FLOAT32 && b->type == FLOAT32 && c->type == FLOAT32) {
        uint64_t began = cuda->real_now();
        compute(m, n, k, *alpha, a, b, *beta, (float *)(uintptr_t)c->at, c->leading);
        cuda->moved(began);
    }
    return OK;
}

EXPORT enum status cublasSgemm_v2(struct handle *handle, int a_op, int b_op, int m, int n, int k, const float *alpha,
                                  const float *a, int a_leading, const float *b, int b_leading, const float *beta,
                                  float *c, int c_leading)
{
    struct matrix left = {a, a_op != 0, a_leading, FLOAT32}, right = {b, b_op != 0, b_leading, FLOAT32};
    struct matrix result = {c, 0, c_leading, FLOAT32};
    return product(handle, m, n, k, alpha, &left, &right, beta, &result);
}

EXPORT enum status cublasGemmEx(struct handle *handle, int a_op, int b_op, int m, int n, int k, const void *alpha,
                                const void *a, int a_type, int a_leading, const void *b, int b_type, int b_leading,
                                const void *beta, void *c, int c_type, int c_leading, int compute_type, int algorithm)
{
    struct matrix left = {a, a_op != 0, a_leading, a_type}, right = {b, b_op != 0, b_leading, b_type};
    struct matrix result = {c, 0, c_leading, c_type};
    (void)compute_type;
    (void)algorithm;
    if (a_type != FLOAT32 && a_type != FLOAT64 && a_type != FLOAT16 && a_type != BFLOAT16)
        return UNSUPPORTED;
    return product(handle, m, n, k, alpha, &left, &right, beta, &result);
}

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
