/* errors.c */
#ifndef CUDASIM_ERRORS_H
#define CUDASIM_ERRORS_H

const char *driver_error_name(int code); /* NULL: not one of ours */
const char *runtime_error_name(int code);
const char *error_text(int code);

#endif
