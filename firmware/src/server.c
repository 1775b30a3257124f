/*
 * server.c - the serial application: one handler for each message of wire.def.
 *
 * State: struct poet_server. `frame` holds a request from its first byte until
 * its reply is sent, and the reply is built in the same buffer. So a handler
 * reads all fields of a request before it writes the first byte of the reply.
 *
 * While a step runs, its poll function calls poet_serve again, in the middle of
 * handle_step:
 * - `received` and `overlong` are reset before a request is answered, because
 *   the next frame is then received into the same buffer.
 * - handle_step keeps nothing in `frame`: it builds the reply on the stack.
 * - dispatch() and poet_write refuse all requests that would disturb the step.
 *
 * A request that is lost or repeated does no harm: the host repeats it until a
 * reply with its sequence number arrives.
 */
#include <string.h>

#include "poet/server.h"
#include "plan.h"

enum { HEAD = 2, CRC = 4, STATUS = 6, REPLY = 0x80, REPLIED = 1 };

/* A request, whose payload is read field by field, and its reply's buffer. */
struct request {
  struct poet_server *server;
  uint8_t sequence;
  const uint8_t *field; /* next field of the payload */
  uint32_t left;        /* bytes of the payload from there on */
  uint8_t *out;         /* reply fields; overlaps the payload */
  uint32_t room;        /* size of that buffer */
  uint32_t size;        /* bytes in it */
  bool malformed;       /* the payload is too short */
};

static void take(struct request *r, void *to, uint32_t size) {
  if (r->left < size) {
    r->malformed = true;
    memset(to, 0, size);
    return;
  }
  memcpy(to, r->field, size);
  r->field += size;
  r->left -= size;
}

#define TAKE(r, type, name)                                                    \
  type name;                                                                   \
  take(r, &name, sizeof name)

/* Return true, after the last field, if the payload had the right length. */
static bool complete(const struct request *r) {
  return !r->malformed && r->left == 0;
}

static void give(struct request *r, const void *from, uint32_t size) {
  memcpy(r->out + r->size, from, size);
  r->size += size;
}

/* `frame` has POET_FRAME_BUFFER(STATUS + body) bytes. */
static void send_reply(struct poet_server *server, uint8_t sequence,
                       uint8_t code, int status, uint8_t *frame,
                       uint32_t body) {
  const int16_t short_status = (int16_t)status;
  const uint32_t size = HEAD + STATUS + (status ? 0 : body);
  frame[0] = sequence;
  frame[1] = (uint8_t)(code | REPLY);
  memcpy(frame + HEAD, &short_status, sizeof short_status);
  memcpy(frame + HEAD + sizeof short_status, &server->poet->detail,
         sizeof server->poet->detail);
  const uint32_t crc = poet_crc(0, frame, size);
  memcpy(frame + size, &crc, sizeof crc);
  server->poet->port->send(server->poet->port->context, frame,
                           poet_cobs_encode(frame, size + CRC));
}

/* ---- handlers ----------------------------------------------------------- */

typedef POET_CHECKED int handler(struct request *r, struct poet *p);

/* Answer a request that has no fields. */
static POET_CHECKED int give_record(struct request *r, const void *record,
                                    uint32_t size) {
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  give(r, record, size);
  return 0;
}

static POET_CHECKED int handle_hello(struct request *r, struct poet *p) {
  struct poet_hello hello;
  poet_describe(p, &hello);
  hello.frame_bytes = (uint16_t)r->server->frame_bytes;
  return give_record(r, &hello, sizeof hello);
}

static POET_CHECKED int handle_rows(struct request *r, struct poet *p) {
  TAKE(r, uint32_t, offset);
  (void)p;
  if (!complete(r) || offset > poet_rows_size()) {
    return POET_ERROR_bad_message;
  }
  const uint32_t rest = poet_rows_size() - offset;
  give(r, poet_rows + offset, rest < r->room ? rest : r->room);
  return 0;
}

static POET_CHECKED int handle_format(struct request *r, struct poet *p) {
  TAKE(r, uint32_t, total_blocks);
  return complete(r) ? poet_format(p, total_blocks) : POET_ERROR_bad_message;
}

static POET_CHECKED int handle_write(struct request *r, struct poet *p) {
  TAKE(r, uint8_t, object);
  TAKE(r, uint16_t, tensor);
  TAKE(r, uint32_t, offset);
  if (r->malformed) {
    return POET_ERROR_bad_message;
  }
  const uint32_t next = offset + r->left;
  const int error = poet_write(p, object, tensor, offset, r->field, r->left);
  give(r, &next, sizeof next);
  return error;
}

static POET_CHECKED int handle_read(struct request *r, struct poet *p) {
  TAKE(r, uint8_t, object);
  TAKE(r, uint16_t, tensor);
  TAKE(r, uint32_t, offset);
  TAKE(r, uint16_t, count);
  if (!complete(r) || count > r->room) {
    return POET_ERROR_bad_message;
  }
  r->size = count;
  return poet_read(p, object, tensor, offset, r->out, count);
}

static POET_CHECKED int handle_checksum(struct request *r, struct poet *p) {
  TAKE(r, uint8_t, object);
  TAKE(r, uint16_t, tensor);
  TAKE(r, uint32_t, count);
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  uint32_t crc = 0;
  const int error = poet_checksum(p, object, tensor, count, &crc);
  give(r, &crc, sizeof crc);
  return error;
}

static POET_CHECKED int handle_load(struct request *r, struct poet *p) {
  struct poet_facts facts = {0};
  TAKE(r, uint32_t, model_bytes);
  TAKE(r, uint32_t, plan_bytes);
  const int error = complete(r) ? poet_load(p, model_bytes, plan_bytes, &facts)
                                : POET_ERROR_bad_message;
  give(r, &facts, sizeof facts);
  return error;
}

static POET_CHECKED int handle_begin(struct request *r, struct poet *p) {
  TAKE(r, uint32_t, step);
  return complete(r) ? poet_begin(p, step) : POET_ERROR_bad_message;
}

static POET_CHECKED int handle_save(struct request *r, struct poet *p) {
  struct poet_saved saved = {0};
  const int error = complete(r) ? poet_save(p, &saved) : POET_ERROR_bad_message;
  give(r, &saved, sizeof saved);
  return error;
}

static POET_CHECKED int handle_trace(struct request *r, struct poet *p) {
  TAKE(r, uint16_t, first);
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  const uint32_t size = sizeof *p->memory.trace;
  const uint32_t all = p->result.trace_records;
  const uint32_t left = first < all ? all - first : 0;
  const uint32_t count = left < r->room / size ? left : r->room / size;
  give(r, p->memory.trace + first, count * size);
  return 0;
}

static POET_CHECKED int handle_status(struct request *r, struct poet *p) {
  return give_record(r, &p->status, sizeof p->status);
}

static POET_CHECKED int handle_health(struct request *r, struct poet *p) {
  struct poet_health health = {0};
  if (p->port->health) {
    p->port->health(p->port->context, &health);
  }
  return give_record(r, &health, sizeof health);
}

static POET_CHECKED int handle_card(struct request *r, struct poet *p) {
  struct poet_card card = {0};
  if (p->port->card) {
    p->port->card(p->port->context, &card);
  }
  return give_record(r, &card, sizeof card);
}

static POET_CHECKED int handle_reset(struct request *r, struct poet *p) {
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  if (r->server->stepping) {
    r->server->stop = true; /* the schedule is unloaded when the step ends */
  } else {
    poet_reset(p);
  }
  return 0;
}

static POET_CHECKED int handle_probe_op(struct request *r, struct poet *p) {
  uint32_t offsets[POET_INPUTS + 2], ticks = 0;
  TAKE(r, uint32_t, step);
  TAKE(r, uint16_t, repeat);
  TAKE(r, struct poet_op, op);
  for (uint32_t i = 0; i < op.input_count + 2u && i < POET_INPUTS + 2; i++) {
    take(r, &offsets[i], sizeof offsets[i]);
  }
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  const int error = poet_probe_op(p, step, repeat, &op, offsets, &ticks);
  give(r, &ticks, sizeof ticks);
  return error;
}

static POET_CHECKED int handle_probe_transfer(struct request *r,
                                              struct poet *p) {
  uint32_t ticks, cpu_ticks;
  TAKE(r, uint8_t, write);
  TAKE(r, uint32_t, size);
  TAKE(r, uint16_t, repeat);
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  const int error =
      poet_probe_transfer(p, write != 0, size, repeat, &ticks, &cpu_ticks);
  give(r, &ticks, sizeof ticks);
  give(r, &cpu_ticks, sizeof cpu_ticks);
  return error;
}

static POET_CHECKED int handle_probe_commit(struct request *r, struct poet *p) {
  uint32_t ticks;
  TAKE(r, uint16_t, repeat);
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  const int error = poet_probe_commit(p, repeat, &ticks);
  give(r, &ticks, sizeof ticks);
  return error;
}

int poet_serve_poll(void *context) {
  struct poet_server *server = context;
  poet_serve(server, 0);
  return server->stop;
}

/* Send the reply of a step, with the sequence number of the last request for
 * the step. If this were inlined, `frame` would use stack during the step. */
__attribute__((noinline)) static void reply_to_step(struct poet_server *server,
                                                    int error) {
  const struct poet_step_result *result = &server->poet->result;
  uint8_t frame[POET_FRAME_BUFFER(STATUS + sizeof *result)];
  memcpy(frame + HEAD + STATUS, result, sizeof *result);
  send_reply(server, server->step_sequence, POET_MESSAGE_step, error, frame,
             sizeof *result);
}

static POET_CHECKED int handle_step(struct request *r, struct poet *p) {
  struct poet_server *server = r->server;
  TAKE(r, uint32_t, step);
  TAKE(r, uint16_t, trace_first);
  TAKE(r, uint16_t, trace_count);
  if (!complete(r)) {
    return POET_ERROR_bad_message;
  }
  if (server->stepping) {
    if (step != server->step) {
      return POET_ERROR_busy;
    }
    server->step_sequence = r->sequence;
    return REPLIED;
  }
  server->stepping = true;
  server->step_sequence = r->sequence;
  server->stop = false;
  server->step = step;
  p->poll = poet_serve_poll;
  p->poll_context = server;
  const int error = poet_step(p, step, trace_first, trace_count, &p->result);
  server->stepping = false;
  reply_to_step(server, error);
  if (server->stop) {
    poet_reset(p);
  }
  return REPLIED;
}

/* ---- frames ------------------------------------------------------------- */

static handler *const handlers[] = {
#define MESSAGE(code, name, request, reply, meaning) [code] = handle_##name,
#include "poet/wire.def"
};

/* While a step runs, all requests except four are refused: they would change
 * the state that the step uses. */
static POET_CHECKED int dispatch(struct request *r, uint8_t code) {
  const bool always = code == POET_MESSAGE_status ||
                      code == POET_MESSAGE_reset || code == POET_MESSAGE_step ||
                      code == POET_MESSAGE_write;
  if (code >= sizeof handlers / sizeof *handlers || !handlers[code]) {
    return POET_ERROR_bad_message;
  }
  if (r->server->stepping && !always) {
    return POET_ERROR_busy;
  }
  return handlers[code](r, r->server->poet);
}

/* Drop a damaged frame: the host repeats its request. */
static void answer(struct poet_server *server, uint32_t received) {
  uint8_t *frame = server->frame;
  const uint32_t size = poet_cobs_decode(frame, received);
  uint32_t crc;
  if (size == UINT32_MAX || size < HEAD + CRC ||
      size > HEAD + server->frame_bytes + CRC) {
    return;
  }
  memcpy(&crc, frame + size - CRC, sizeof crc);
  if (crc != poet_crc(0, frame, size - CRC) || (frame[1] & REPLY)) {
    return;
  }
  struct request r = {.server = server,
                      .sequence = frame[0],
                      .field = frame + HEAD,
                      .left = size - HEAD - CRC,
                      .out = frame + HEAD + STATUS,
                      .room = server->frame_bytes - STATUS};
  const uint8_t code = frame[1];
  struct poet *p = server->poet;
  const bool stepping = server->stepping;
  struct poet_usage before;
  poet_usage(p->port, &before);
  const uint32_t begin = poet_ticks(p->port);
  server->attended = true;
  p->detail = 0;
  const int status = dispatch(&r, code);
  if (status != REPLIED) {
    send_reply(server, r.sequence, code, status, frame, r.size);
  }
  if (stepping) {
    p->result.serving_ticks += poet_ticks(p->port) - begin;
    poet_count_overhead(p, &before);
  }
}

/* Answer the frame that is complete. `received` and `overlong` are reset before
 * answer(): if this request starts a step, the next frame arrives here before
 * answer() returns. */
static void end_frame(struct poet_server *server) {
  const uint32_t size = server->overlong ? 0 : server->received - 1;
  server->received = 0;
  server->overlong = false;
  if (size) {
    answer(server, size);
  }
}

void poet_serve(struct poet_server *server, uint32_t wait_ms) {
  const struct poet_port *port = server->poet->port;
  const uint32_t capacity = POET_FRAME_BUFFER(server->frame_bytes);
  uint32_t got;
  do {
    if (server->received == capacity) {
      server->overlong = true;
      server->received = 0;
    }
    got =
        (uint32_t)port->receive(port->context, server->frame + server->received,
                                capacity - server->received, wait_ms);
    server->received += got;
    if (got && !server->frame[server->received - 1]) {
      end_frame(server);
    }
    wait_ms = 0;
  } while (got);
}
