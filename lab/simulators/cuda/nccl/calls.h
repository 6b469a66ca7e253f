/* What groups and communicators know of each other. */
#ifndef CUDASIM_NCCL_CALLS_H
#define CUDASIM_NCCL_CALLS_H

#include "nccl.h"

int in_group(void);         /* calls.c */
enum result join_all(void); /* comm.c: communicators asked for in this group are made */

#endif
