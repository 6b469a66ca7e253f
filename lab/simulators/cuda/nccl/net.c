/* Communicators over several processes. The process that made the id listens; the others connect to it and say which ranks they have. Values go to
 * it and come back summed, so every byte of an all-reduce goes over TCP, if not around a ring. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net.h"

#define MARK "rigwright lab"
#define DOORS 8

struct hello {
    char mark[16];
    unsigned long long id;
    int count, ranks[MAX_RANKS];
};

struct header {
    unsigned long long bytes;
    int type, reduction;
};

static struct {
    unsigned long long id;
    int fd;
} doors[DOORS];

static unsigned long long own_process(void)
{
    static unsigned long long number;
    while (!number)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            number = 0;
    return number;
}

int net_is_own(const struct unique_id *id)
{
    return id->process == own_process();
}

/* NCCL_SOCKET_IFNAME: =eth0 is that name, eth0 a beginning. Other forms are not simulated. */
void net_interface(char *name, size_t size, unsigned *address)
{
    const char *wanted = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *one;
    snprintf(name, size, "lo");
    *address = htonl(INADDR_LOOPBACK);
    if (!wanted || !*wanted || getifaddrs(&all))
        return;
    int exact = *wanted == '=';
    wanted += exact;
    for (one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP))
            continue;
        if (exact ? strcmp(one->ifa_name, wanted) : strncmp(one->ifa_name, wanted, strlen(wanted)))
            continue;
        snprintf(name, size, "%s", one->ifa_name);
        *address = ((struct sockaddr_in *)one->ifa_addr)->sin_addr.s_addr;
        break;
    }
    freeifaddrs(all);
}

enum result net_listen(struct unique_id *id)
{
    static int next;
    char name[IF_NAMESIZE];
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    net_interface(name, sizeof name, &at.sin_addr.s_addr);
    strcpy(id->mark, MARK);
    id->process = own_process();
    id->address = at.sin_addr.s_addr;
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, MAX_RANKS) ||
        getsockname(fd, (struct sockaddr *)&at, &size)) {
        if (fd >= 0)
            close(fd);
        return SYSTEM_ERROR;
    }
    id->port = ntohs(at.sin_port);
    if (doors[next % DOORS].fd)
        close(doors[next % DOORS].fd);
    doors[next % DOORS].id = id->id;
    doors[next % DOORS].fd = fd;
    next++;
    return NCCL_SUCCESS;
}

static int transfer(int fd, void *data, size_t bytes, int sends)
{
    char *at = data;
    while (bytes) {
        ssize_t part = sends ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        if (part <= 0)
            return -1;
        at += part;
        bytes -= (size_t)part;
    }
    return 0;
}

static int door_of(unsigned long long id)
{
    for (int i = 0; i < DOORS; i++)
        if (doors[i].fd && doors[i].id == id)
            return doors[i].fd;
    return -1;
}

/* A process of another host, if one comes within a few milliseconds. */
static void admit(struct clique *clique, pthread_mutex_t *mutex)
{
    struct pollfd door = {.fd = door_of(clique->origin_id), .events = POLLIN};
    struct hello hello;
    if (poll(&door, door.fd >= 0, 5) <= 0)
        return;
    int fd = accept4(door.fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct timeval limit = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (transfer(fd, &hello, sizeof hello, 0) || strcmp(hello.mark, MARK) || hello.id != clique->origin_id || hello.count < 1 ||
        hello.count > MAX_RANKS || clique->peers == MAX_RANKS) {
        close(fd);
        return;
    }
    limit.tv_sec = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    pthread_mutex_lock(mutex);
    clique->fds[clique->peers++] = fd;
    clique->joined += hello.count;
    pthread_mutex_unlock(mutex);
}

static enum result await_others(struct clique *clique, pthread_mutex_t *mutex)
{
    for (;;) {
        pthread_mutex_lock(mutex);
        int whole = clique->joined >= clique->ranks;
        pthread_mutex_unlock(mutex);
        if (whole)
            break;
        admit(clique, mutex);
    }
    for (int i = 0; i < clique->peers; i++)
        if (transfer(clique->fds[i], "g", 1, 1))
            return SYSTEM_ERROR;
    clique->spread = clique->peers > 0;
    return NCCL_SUCCESS;
}

static enum result go_to_root(struct clique *clique)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = clique->origin_address,
                             .sin_port = htons((uint16_t)clique->origin_port)};
    struct hello hello = {.mark = MARK, .id = clique->origin_id};
    char go;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int rank = 0; rank < clique->ranks; rank++)
        if (clique->comms[rank])
            hello.ranks[hello.count++] = rank;
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) || transfer(fd, &hello, sizeof hello, 1) ||
        transfer(fd, &go, 1, 0)) {
        if (fd >= 0)
            close(fd);
        return SYSTEM_ERROR;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    clique->root = fd;
    clique->spread = 1;
    clique->joined = clique->ranks;
    return NCCL_SUCCESS;
}

enum result net_join(struct clique *clique, pthread_mutex_t *mutex)
{
    if (clique->spread || clique->joined >= clique->ranks)
        return NCCL_SUCCESS;
    return clique->is_origin ? await_others(clique, mutex) : go_to_root(clique);
}

static enum result through_root(struct clique *clique, struct header *header, void *values)
{
    if (transfer(clique->root, header, sizeof *header, 1) || transfer(clique->root, values, header->bytes, 1) ||
        transfer(clique->root, values, header->bytes, 0))
        return SYSTEM_ERROR;
    return NCCL_SUCCESS;
}

enum result net_reduce(struct clique *clique, void *values, size_t count, int type, int reduction)
{
    struct header header = {.bytes = count * type_size(type), .type = type, .reduction = reduction}, theirs;
    enum result result = NCCL_SUCCESS;
    if (clique->root)
        return through_root(clique, &header, values);
    void *other = malloc(header.bytes);
    for (int i = 0; other && !result && i < clique->peers; i++) {
        if (transfer(clique->fds[i], &theirs, sizeof theirs, 0) || memcmp(&theirs, &header, sizeof header) ||
            transfer(clique->fds[i], other, header.bytes, 0))
            result = SYSTEM_ERROR;
        else
            combine(values, other, count, type, reduction);
    }
    for (int i = 0; !result && i < clique->peers; i++)
        if (transfer(clique->fds[i], values, header.bytes, 1))
            result = SYSTEM_ERROR;
    free(other);
    return other ? result : SYSTEM_ERROR;
}

void net_leave(struct clique *clique)
{
    for (int i = 0; i < clique->peers; i++)
        close(clique->fds[i]);
    if (clique->root)
        close(clique->root);
}
