/*
 * alone.c - the job on the storage, trained without a host. Meanwhile, requests
 * are answered as during any other step (server.c).
 */
#include "poet/server.h"
#include "plan.h"

int poet_serve_alone(struct poet_server *server) {
  struct poet *p = server->poet;
  struct poet_job job;
  p->poll = poet_serve_poll;
  p->poll_context = server;
  server->stepping = true;
  int error = poet_job_open(p, &job);
  const bool has_job = !error;
  while (!error && !(error = poet_job_next(p, &job))) {
    server->step = poet_last_step(p) + 1;
    error = poet_step(p, server->step, 0, 0, &p->result);
  }
  server->stepping = false;
  poet_reset(p);
  return has_job ? error : 0;
}
