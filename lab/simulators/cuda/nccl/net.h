/* net.c: communicators over several processes, which meet over TCP. */
#ifndef CUDASIM_NCCL_NET_H
#define CUDASIM_NCCL_NET_H

#include "nccl.h"

struct unique_id { /* as in the interface: 128 bytes that mean something to NCCL alone */
    char mark[16];
    unsigned long long id, process; /* process: a random number of the process that made it; ids of processes repeat on other hosts */
    unsigned address;               /* in network order, where that process listens */
    int port;
    char unused[88];
};
_Static_assert(sizeof(struct unique_id) == 128, "unique_id");

void net_interface(char *name, size_t size, unsigned *address); /* of NCCL_SOCKET_IFNAME; lo without it */
enum result net_listen(struct unique_id *id);
int net_is_own(const struct unique_id *id);
/* Waits for the ranks of other processes. `mutex` guards the clique. */
enum result net_join(struct clique *clique, pthread_mutex_t *mutex);
/* The values of all processes, put together; SYSTEM_ERROR when one has gone. */
enum result net_reduce(struct clique *clique, void *values, size_t count, int type, int reduction);
void net_leave(struct clique *clique);

#endif
