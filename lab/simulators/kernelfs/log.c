/* The kernel logs: one ring of records per host, and those who read them. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernelfs.h"

enum { WARNING = 4, INFO = 6, FACILITY_USER = 1 << 3 };

static struct host *hosts;
static struct reader *readers;

struct host *host_of_id(uint64_t id)
{
    struct host *host = hosts;
    while (host && host->id != id)
        host = host->next;
    return host;
}

struct host *host_of_name(const char *name, size_t size)
{
    struct host *host = hosts;
    while (host && (strlen(host->name) != size || memcmp(host->name, name, size)))
        host = host->next;
    return host;
}

static void empty(struct host *host)
{
    for (uint64_t n = host->first; n < host->end; n++)
        free(host->records[n % MAX_RECORDS].text);
    host->first = host->end = 0;
}

static void reset(const char *name, long long zero_s)
{
    static uint64_t ids;
    struct host *host = host_of_name(name, strlen(name));
    if (!host) {
        host = calloc(1, sizeof *host);
        host->records = calloc(MAX_RECORDS, sizeof *host->records);
        host->id = ++ids;
        snprintf(host->name, sizeof host->name, "%s", name);
        host->next = hosts;
        hosts = host;
    }
    empty(host);
    host->zero_us = (uint64_t)zero_s * 1000000;
    host->huge_pages = 0;
    host->transparent = 1;
    for (struct reader *reader = readers; reader; reader = reader->next)
        if (reader->host == host)
            reader->at = 0;
}

static void forget(const char *name)
{
    struct host *host = host_of_name(name, strlen(name)), **link = &hosts;
    if (!host)
        return;
    for (struct reader *reader = readers; reader; reader = reader->next) {
        if (reader->host != host)
            continue;
        if (reader->waiting)
            answer(reader->waiting, -ENODEV, NULL, 0);
        reader->waiting = 0;
        reader->host = NULL;
    }
    while (*link != host)
        link = &(*link)->next;
    *link = host->next;
    empty(host);
    free(host->records);
    free(host);
}

int control(const char *text, size_t size)
{
    char line[128], name[64];
    long long zero_s = 0;
    if (size >= sizeof line)
        return -EINVAL;
    memcpy(line, text, size);
    line[size] = 0;
    if (sscanf(line, "reset %63s %lld", name, &zero_s) == 2)
        reset(name, zero_s);
    else if (sscanf(line, "forget %63s", name) == 1)
        forget(name);
    else
        return -EINVAL;
    return 0;
}

struct reader *reader_open(struct host *host)
{
    struct reader *reader = calloc(1, sizeof *reader);
    reader->host = host;
    reader->at = host->first;
    reader->next = readers;
    readers = reader;
    return reader;
}

void reader_close(struct reader *reader)
{
    struct reader **link = &readers;
    while (*link != reader)
        link = &(*link)->next;
    *link = reader->next;
    free(reader);
}

int reader_ready(const struct reader *reader)
{
    return !reader->host || reader->at < reader->host->end;
}

/* As the kernel's own: PRIORITY,NUMBER,MICROSECONDS,-;TEXT, what is not printable as \xNN. */
static void give(struct reader *reader, uint64_t request, uint32_t room)
{
    char out[64 + 4 * MAX_TEXT + 2];
    struct host *host = reader->host;
    if (reader->at < host->first) {
        reader->at = host->first;
        answer(request, -EPIPE, NULL, 0);
        return;
    }
    const struct record *record = &host->records[reader->at % MAX_RECORDS];
    size_t size = (size_t)sprintf(out, "%u,%llu,%llu,-;", record->priority, (unsigned long long)reader->at,
                                  (unsigned long long)record->usec);
    for (const char *c = record->text; *c; c++)
        size += (size_t)sprintf(out + size, *c < ' ' || *c == 127 || *c == '\\' ? "\\x%02x" : "%c", (unsigned char)*c);
    out[size++] = '\n';
    if (size > room) {
        answer(request, -EINVAL, NULL, 0);
        return;
    }
    reader->at++;
    answer(request, 0, out, size);
}

void reader_read(struct reader *reader, uint64_t request, uint32_t room, int nonblocking)
{
    if (!reader->host)
        answer(request, -ENODEV, NULL, 0);
    else if (reader_ready(reader))
        give(reader, request, room);
    else if (nonblocking || reader->waiting)
        answer(request, -EAGAIN, NULL, 0);
    else {
        reader->waiting = request;
        reader->room = room;
    }
}

void reader_interrupt(uint64_t request)
{
    for (struct reader *reader = readers; reader; reader = reader->next) {
        if (reader->waiting != request)
            continue;
        reader->waiting = 0;
        answer(request, -EINTR, NULL, 0);
    }
}

static void wake(struct host *host)
{
    for (struct reader *reader = readers; reader; reader = reader->next) {
        uint64_t request = reader->waiting;
        if (reader->host != host)
            continue;
        reader->waiting = 0;
        if (request)
            give(reader, request, reader->room);
        if (reader->polled)
            wake_poll(reader->poll);
        reader->polled = 0;
    }
}

int log_write(struct host *host, const char *text, size_t size, int from_kernel, int is_root)
{
    struct timespec now;
    char given[16];
    unsigned priority = from_kernel ? INFO : WARNING;
    size_t digits = 0;
    if (size > 3 && text[0] == '<') {
        while (digits < 4 && digits + 1 < size && text[digits + 1] >= '0' && text[digits + 1] <= '9')
            digits++;
        if (digits && digits + 1 < size && text[digits + 1] == '>') {
            snprintf(given, sizeof given, "%.*s", (int)digits, text + 1);
            priority = (unsigned)atoi(given);
            text += digits + 2;
            size -= digits + 2;
        }
    }
    if (!from_kernel && priority < FACILITY_USER)
        priority |= FACILITY_USER;
    /* The driver library runs as anybody; a kernel module speaks for it, and only of this. */
    static const char mismatch[] = "NVRM: API mismatch: ";
    if (from_kernel && !is_root && (size < sizeof mismatch || memcmp(text, mismatch, sizeof mismatch - 1)))
        return -EPERM;
    while (size && text[size - 1] == '\n')
        size--;
    if (size > MAX_TEXT)
        size = MAX_TEXT;
    if (host->end - host->first == MAX_RECORDS)
        free(host->records[host->first++ % MAX_RECORDS].text);
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t usec = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000 - host->zero_us;
    host->records[host->end++ % MAX_RECORDS] = (struct record){usec, priority, strndup(text, size)};
    wake(host);
    return 0;
}
