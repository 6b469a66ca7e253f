/* The sensors are made from the state at each request; numbers and names follow from the rails, supplies and GPUs.
 *   inlet_c                 the air at the front
 *   rails, supplies         as in ../nvml/rails.c
 *   fans_rpm=25000          of a fan at full speed (servbadge: its owner); one fan in front of each GPU */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../nvml/sim.h"
#include "../nvml/ticks.h"
#include "ipmi.h"

enum code { OK_CODE = 0, INVALID_COMMAND = 0xC1, INVALID_RESERVATION = 0xC5, OUT_OF_RANGE = 0xC9, NOT_PRESENT = 0xCB };
enum kind { TEMPERATURE, VOLTAGE, FAN, SUPPLY, WATTS };

#define SENSORS 96
#define RESERVATION 0x0101

struct sensor {
    enum kind kind;
    char name[17];
    int number;        /* of its rail, GPU or supply */
    double value;      /* of SUPPLY: bits, 0 present 1 failed 3 no input */
    uint8_t low[3], high[3]; /* raw: not critical, critical, not recoverable; 0: none */
};

/* SDR: sensor type, entity, unit, and value = raw * m * 10^exponent */
static const struct {
    uint8_t type, entity, unit, m;
    int8_t exponent;
} kinds[] = {
    [TEMPERATURE] = {0x01, 0x37, 1, 1, 0}, [VOLTAGE] = {0x02, 0x14, 4, 60, -3}, [FAN] = {0x04, 0x1D, 18, 100, 0},
    [SUPPLY] = {0x08, 0x0A, 0, 0, 0},      [WATTS] = {0x0B, 0x0A, 6, 10, 0},
};

static struct sensor sensors[SENSORS];
static int count;

static struct sensor *add(enum kind kind, int number, double value, const char *format, int shown)
{
    struct sensor *made = &sensors[count < SENSORS - 1 ? count++ : count];
    *made = (struct sensor){.kind = kind, .number = number, .value = value};
    snprintf(made->name, sizeof made->name, format, shown);
    return made;
}

static void limits(struct sensor *sensor, const uint8_t *low, const uint8_t *high)
{
    memcpy(sensor->low, low, 3);
    memcpy(sensor->high, high, 3);
}

static void add_rail(const struct ticks_file *state, int rail)
{
    static const uint8_t low[3] = {193, 190, 180}, high[3] = {208, 210, 220}; /* 11.58 11.40 10.80, 12.48 12.60 13.20 V */
    struct rail_figures figures;
    const struct rail_state *now = &state->rail[rail];
    double siemens = 0;
    char key[32];
    limits(add(VOLTAGE, rail, now->volts, rails_count() > 1 ? "12V %d" : "12V", rail + 1), low, high);
    rail_figures(rail, &figures);
    for (int i = 0; i < figures.model.supplies; i++)
        siemens += figures.model.rating_w[i] > 0 && !(now->tripped >> i & 1) ? 1 / figures.model.ohms[i] : 0;
    snprintf(key, sizeof key, "rail%d.supplies", rail);
    const char *first = conf_str(key);
    int number = first ? (int)strtol(first, NULL, 10) : 0;
    for (int i = 0; i < figures.model.supplies; i++, number++) {
        int works = figures.model.rating_w[i] > 0 && !(now->tripped >> i & 1);
        double watts = works && siemens > 0 ? now->volts * now->amps / siemens / figures.model.ohms[i] : 0;
        add(SUPPLY, number, figures.model.rating_w[i] <= 0 ? 0x9 : works ? 0x1 : 0x3, "PS%d Status", number + 1);
        add(WATTS, number, watts, "PS%d Power", number + 1);
    }
}

static void look(void)
{
    static const uint8_t low_fan[3] = {7, 5, 3}, high_air[3] = {38, 42, 45}, high_gpu[3] = {0, 95, 100}, none[3];
    const struct ticks_file *state = ticks_now();
    count = 0;
    limits(add(TEMPERATURE, 0, (double)conf_int("inlet_c", INLET_C), "Inlet Temp", 0), none, high_air);
    for (int rail = 0; rail < rails_count(); rail++)
        add_rail(state, rail);
    for (int gpu = 0; gpu < gpu_count() && gpu < 16; gpu++) {
        const struct gpu_physics *one = &state->gpu[gpu];
        double rpm = one->fan_percent / 100 * (double)conf_int("fans_rpm", 25000);
        limits(add(FAN, gpu, rpm, "FAN%d", gpu + 1), low_fan, none);
        if (!gpu_int(gpu, 0, "absent") && !one->lost)
            limits(add(TEMPERATURE, gpu, one->core_c, "GPU%d Temp", gpu + 1), none, high_gpu);
    }
}

static double power_of_ten(int exponent)
{
    double value = 1;
    for (int i = 0; i < (exponent < 0 ? -exponent : exponent); i++)
        value *= 10;
    return exponent < 0 ? 1 / value : value;
}

static uint8_t raw(const struct sensor *sensor)
{
    double value = sensor->value / (kinds[sensor->kind].m * power_of_ten(kinds[sensor->kind].exponent)) + 0.5;
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static uint8_t threshold_mask(const struct sensor *sensor)
{
    uint8_t mask = 0;
    for (int i = 0; i < 3; i++)
        mask |= (uint8_t)((sensor->low[i] ? 1 << i : 0) | (sensor->high[i] ? 8 << i : 0));
    return mask;
}

static uint8_t crossed(const struct sensor *sensor, uint8_t value)
{
    uint8_t state = 0;
    for (int i = 0; i < 3; i++) {
        state |= (uint8_t)(sensor->low[i] && value <= sensor->low[i] ? 1 << i : 0);
        state |= (uint8_t)(sensor->high[i] && value >= sensor->high[i] ? 8 << i : 0);
    }
    return state;
}

/* A sensor data record: full (01h) for values, compact (02h) for the states of supplies. */
static size_t record(int at, uint8_t *out)
{
    const struct sensor *sensor = &sensors[at];
    size_t name = strlen(sensor->name), start = sensor->kind == SUPPLY ? 31 : 47;
    uint8_t mask = threshold_mask(sensor);
    memset(out, 0, start + 1);
    out[0] = (uint8_t)(at + 1);
    out[2] = 0x51;
    out[3] = sensor->kind == SUPPLY ? 2 : 1;
    out[5] = 0x20;
    out[7] = (uint8_t)(at + 1);
    out[8] = kinds[sensor->kind].entity;
    out[9] = (uint8_t)(sensor->number + 1);
    out[10] = 0x7F;
    out[11] = 0x68;
    out[12] = kinds[sensor->kind].type;
    out[13] = sensor->kind == SUPPLY ? 0x6F : 0x01;
    if (sensor->kind == SUPPLY) {
        out[14] = out[16] = out[18] = 0x0B;
        out[20] = 0xC0;
        out[23] = 1;
    } else {
        out[18] = mask; /* which thresholds can be read */
        out[21] = kinds[sensor->kind].unit;
        out[24] = kinds[sensor->kind].m;
        out[29] = (uint8_t)((kinds[sensor->kind].exponent & 0xF) << 4);
        out[34] = 0xFF; /* the highest raw reading */
        for (int i = 0; i < 3; i++) {
            out[36 + i] = sensor->high[2 - i];
            out[39 + i] = sensor->low[2 - i];
        }
    }
    out[start] = (uint8_t)(0xC0 | name);
    memcpy(out + start + 1, sensor->name, name);
    out[4] = (uint8_t)(start + 1 + name - 5);
    return start + 1 + name;
}

static uint8_t get_sdr(const uint8_t *data, size_t size, uint8_t *out, size_t *out_size)
{
    uint8_t whole[64];
    if (size < 6)
        return OUT_OF_RANGE;
    int wanted = data[2] | data[3] << 8, at = wanted == 0xFFFF ? count - 1 : wanted ? wanted - 1 : 0;
    if (data[4] && (data[0] | data[1] << 8) != RESERVATION)
        return INVALID_RESERVATION;
    if (at < 0 || at >= count)
        return NOT_PRESENT;
    size_t length = record(at, whole), from = data[4], many = data[5];
    if (from >= length)
        return OUT_OF_RANGE;
    if (many > length - from)
        many = length - from;
    int next = at + 1 < count ? at + 2 : 0xFFFF;
    out[0] = (uint8_t)next;
    out[1] = (uint8_t)(next >> 8);
    memcpy(out + 2, whole + from, many);
    *out_size = many + 2;
    return OK_CODE;
}

static uint8_t give(uint8_t *out, size_t *out_size, const uint8_t *data, size_t size)
{
    memcpy(out, data, size);
    *out_size = size;
    return OK_CODE;
}

static uint8_t sensor_command(uint8_t cmd, const uint8_t *data, size_t size, uint8_t *out, size_t *out_size)
{
    int at = size ? data[0] - 1 : -1;
    if (at < 0 || at >= count)
        return NOT_PRESENT;
    const struct sensor *sensor = &sensors[at];
    uint8_t value = sensor->kind == SUPPLY ? 0 : raw(sensor);
    if (cmd == 0x2D && sensor->kind == SUPPLY)
        return give(out, out_size, (uint8_t[]){0, 0xC0, (uint8_t)sensor->value, 0x80}, 4);
    if (cmd == 0x2D)
        return give(out, out_size, (uint8_t[]){value, 0xC0, (uint8_t)(0xC0 | crossed(sensor, value))}, 3);
    if (cmd == 0x27)
        return give(out, out_size, (uint8_t[]){threshold_mask(sensor), sensor->low[0], sensor->low[1], sensor->low[2],
                                               sensor->high[0], sensor->high[1], sensor->high[2]}, 7);
    if (cmd == 0x25)
        return give(out, out_size, (uint8_t[]){1, 1}, 2);
    return INVALID_COMMAND;
}

uint8_t ipmi_answer(uint8_t netfn, uint8_t cmd, const uint8_t *data, size_t size, uint8_t *out, size_t *out_size)
{
    look();
    switch (netfn << 8 | cmd) {
    case 0x0601: /* get device id: IPMI 2.0, with sensors and their records */
        return give(out, out_size, (uint8_t[]){0x20, 0x01, 0x01, 0x00, 0x02, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 15);
    case 0x0001: /* get chassis status: power is on */
        return give(out, out_size, (uint8_t[]){0x01, 0, 0, 0}, 4);
    case 0x0A20: /* get SDR repository info */
        return give(out, out_size, (uint8_t[]){0x51, (uint8_t)count, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02}, 14);
    case 0x0A22: /* reserve it */
    case 0x0A42:
        return give(out, out_size, (uint8_t[]){RESERVATION & 0xFF, RESERVATION >> 8}, 2);
    case 0x0A23:
        return get_sdr(data, size, out, out_size);
    case 0x0A40: /* get SEL info: no events are kept */
        return give(out, out_size, (uint8_t[]){0x51, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0}, 14);
    }
    return netfn == 0x04 ? sensor_command(cmd, data, size, out, out_size) : INVALID_COMMAND;
}
