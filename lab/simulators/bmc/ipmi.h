/* The sensors of the machine as IPMI 2.0 tells them: device id, chassis, SDR repository, sensor readings, event log. */
#ifndef BMCSIM_IPMI_H
#define BMCSIM_IPMI_H

#include <stddef.h>
#include <stdint.h>

/* Writes the data of the response (at most 255 bytes) and returns the completion code. */
uint8_t ipmi_answer(uint8_t netfn, uint8_t cmd, const uint8_t *data, size_t size, uint8_t *out, size_t *out_size);

#endif
