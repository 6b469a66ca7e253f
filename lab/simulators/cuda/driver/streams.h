/* streams.c, for the table of functions. */
#ifndef CUDASIM_STREAMS_H
#define CUDASIM_STREAMS_H

#include "driver.h"

int stream_new(int gpu, unsigned flags, struct stream **out);
int stream_free(struct stream *stream);
int stream_wait(struct stream *stream, int whole_gpu); /* not under the lock */
int stream_query(struct stream *stream);
void stream_revive(struct stream *stream);
void stream_hold(struct stream *stream, int more);
void stream_spin(struct stream *stream);
int event_new(unsigned flags, struct event **out);
int event_free(struct event *event);
int event_record(struct event *event, struct stream *stream);
int event_query(struct event *event);
int event_wait(struct event *event); /* not under the lock */
int event_ms(float *out, struct event *from, struct event *to);
int stream_wait_event(struct stream *stream, struct event *event);

#endif
