/*
 * learner_open.c - open a learner: check the package, divide the memory, find
 * the weights and the samples.
 */
#include <math.h>
#include <string.h>

#include "learning.h"

#if POET_LIBRARY

_Static_assert(sizeof(struct learning) <= sizeof(struct poet_learner),
               "a learner holds its state");
_Static_assert(sizeof(struct poet_transfer) <= 48 + 2 * sizeof(void *),
               "POET_MEMORY_BYTES counts transfers");
_Static_assert(sizeof(struct poet_cache) <= 520 + 2 * sizeof(void *),
               "POET_MEMORY_BYTES counts a cached block");
_Static_assert(sizeof(struct poet_resident) == 12,
               "POET_MEMORY_BYTES counts residents");

/* So no product of sizes exceeds 32 bits, but for the bytes of all samples. */
enum { MOST_PLACES = 1 << 15, MOST_VALUES = 1 << 24 };

/* What both schedules of a package need at most. */
struct needs {
  uint32_t arena_bytes, residents, transfers, cached, tensors;
};

static uint32_t greater(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* Is a part what its CRC says? Until then, no number in it is trusted. */
static bool is_whole(const uint8_t *part, uint32_t bytes, uint32_t crc) {
  return poet_crc(0, part + 8, bytes - 8) == crc;
}

static bool add_needs(const struct poet_program *program, struct needs *needs) {
  struct poet_model model;
  struct poet_plan_header plan;
  if (program->model_bytes < sizeof model ||
      program->plan_bytes < sizeof plan) {
    return false;
  }
  memcpy(&model, program->model, sizeof model);
  memcpy(&plan, program->plan, sizeof plan);
  needs->arena_bytes = greater(needs->arena_bytes, plan.arena_bytes);
  needs->residents = greater(needs->residents, plan.resident_max);
  needs->transfers = greater(needs->transfers, plan.queue_max);
  needs->cached =
      greater(needs->cached, model.flags & POET_MODEL_IN_RAM ? 1 : 2);
  needs->tensors = greater(needs->tensors, model.tensor_count);
  return model.magic == POET_MODEL_MAGIC && plan.magic == POET_PLAN_MAGIC &&
         is_whole(program->model, program->model_bytes, model.crc) &&
         is_whole(program->plan, program->plan_bytes, plan.crc) &&
         model.stored_count <= model.tensor_count &&
         program->model_bytes >=
             sizeof model + model.tensor_count * sizeof(struct poet_tensor);
}

/* Return the size of a tensor of a program, whose table add_needs has found. */
static uint32_t size_of(const struct poet_program *program, uint32_t number) {
  struct poet_tensor tensor;
  memcpy(&tensor,
         program->model + sizeof(struct poet_model) + number * sizeof tensor,
         sizeof tensor);
  return tensor.size_bytes;
}

/* Do samples, labels and outputs have the sizes of the tensors? */
static bool has_sizes(const struct poet_package *package) {
  const uint32_t sample = package->sample_values * 4u;
  struct poet_model trained, forward;
  memcpy(&trained, package->training.model, sizeof trained);
  memcpy(&forward, package->forward.model, sizeof forward);
  return package->data < trained.stored_count &&
         package->label < trained.stored_count && forward.stored_count &&
         size_of(&package->training, package->data) ==
             package->batch * sample &&
         size_of(&package->training, package->label) ==
             package->batch * (package->repeats_the_input ? sample : 4) &&
         size_of(&package->forward, forward.stored_count - 1u) == sample &&
         size_of(&package->forward, forward.tensor_count - 1u) ==
             package->outputs * 4u;
}

static bool has_values(const struct poet_package *package) {
  struct poet_model model;
  uint32_t crc = 0;
  memcpy(&model, package->training.model, sizeof model);
  for (uint32_t i = 0; i < model.stored_count; i++) {
    if (package->values[i]) {
      crc = poet_crc(crc, package->values[i], size_of(&package->training, i));
    }
  }
  return crc == package->values_crc;
}

static bool is_package(const struct poet_package *package,
                       struct needs *needs) {
  *needs = (struct needs){.residents = 1, .transfers = 1};
  return package && package->magic == POET_PACKAGE_MAGIC &&
         add_needs(&package->training, needs) &&
         add_needs(&package->forward, needs) && package->classes &&
         package->slots && package->batch && package->channels &&
         (uint64_t)package->classes * (package->slots + 1u) <= MOST_PLACES &&
         package->sample_values &&
         package->sample_values <= MOST_VALUES / package->batch &&
         package->values && package->offset && package->scale &&
         package->sample_values % package->channels == 0 &&
         package->raw <= POET_RAW_uint8 && has_sizes(package) &&
         has_values(package);
}

static uint32_t own_blocks(const struct poet_package *package, uint32_t unit) {
  return poet_samples_blocks(package->classes, package->slots,
                             learner_raw_bytes(package), unit) +
         learner_staging_blocks(package, unit);
}

uint32_t poet_learner_blocks(const struct poet_package *package,
                             uint32_t erase_blocks) {
  const uint32_t unit = erase_blocks ? erase_blocks : 1;
  struct needs needs;
  if (!is_package(package, &needs)) {
    return UINT32_MAX;
  }
  struct poet_program program = package->training;
  program.own_blocks = own_blocks(package, unit);
  return poet_least_blocks(&program, unit);
}

static void *take(uint8_t **memory, uint32_t bytes) {
  uint8_t *taken = *memory;
  *memory += POET_MEMORY_ROUNDED(bytes);
  return taken;
}

/* Divide the memory in the way that POET_MEMORY_BYTES counts it. */
static void divide(struct learning *l, const struct needs *needs,
                   uint32_t places, uint32_t place_bytes, uint8_t *memory) {
  const struct poet_package *package = l->package;
  const uint32_t all = (uint32_t)package->classes * places;
  const uint32_t words = poet_divided_up(needs->tensors, 32);
  struct poet_memory own = {.arena_bytes = needs->arena_bytes,
                            .resident_capacity = (uint16_t)needs->residents,
                            .tensor_capacity = (uint16_t)needs->tensors,
                            .queue_capacity = (uint16_t)needs->transfers,
                            .cache_blocks = (uint16_t)needs->cached};
  own.arena = take(&memory, needs->arena_bytes);
  own.trace = (void *)own.arena; /* it has no entries */
  own.queue =
      take(&memory, needs->transfers * (uint32_t)sizeof(struct poet_transfer));
  own.cache =
      take(&memory, needs->cached * (uint32_t)sizeof(struct poet_cache));
  own.residents =
      take(&memory, needs->residents * (uint32_t)sizeof(struct poet_resident));
  own.bitmap = take(&memory, words * 4);
  l->staged = take(&memory, words * 4);
  l->samples =
      (struct poet_samples){.p = &l->p,
                            .sample_bytes = learner_raw_bytes(package),
                            .is_unsigned = package->raw == POET_RAW_uint8,
                            .classes = package->classes,
                            .slots = package->slots,
                            .erase_blocks = learner_unit(l->device)};
  l->samples.from = take(&memory, (all + package->classes) * 4);
  l->samples.next = l->samples.from + all;
  l->samples.ram = place_bytes ? take(&memory, all * place_bytes) : NULL;
  poet_init(&l->p, &l->port, &own);
}

/* Find weights and samples, or begin with those of the package. */
static POET_CHECKED int begin(struct learning *l) {
  struct poet *p = &l->p;
  const bool is_new = p->committed.now.step == POET_NO_STEP;
  TRY(poet_samples_open(&l->samples, is_new));
  if (is_new) {
    TRY(learner_begin(l, 0));
  } else if (l->samples.record.reset &&
             l->samples.record.reset == p->committed.now.generation) {
    /* the power was cut, perhaps while frozen tensors were written */
    l->loss = p->committed.now.loss;
    TRY(learner_begin(l, p->committed.now.step));
  } else {
    TRY(learner_restore(l));
  }
  l->target = learner_step(l);
  return poet_load_forward(p, &l->package->forward);
}

static POET_CHECKED int load(struct learning *l) {
  struct poet_facts facts;
  TRY(poet_load_program(&l->p, &l->training, &facts));
  return begin(l);
}

/* Is there a storage that could not be used as it is? */
static bool is_refused(const struct learning *l, int error) {
  switch (error) {
  case POET_ERROR_not_blank:
  case POET_ERROR_foreign_storage:
  case POET_ERROR_storage_small:
  case POET_ERROR_storage_version:
  case POET_ERROR_other_model:
  case POET_ERROR_storage_failed:
  case POET_ERROR_page_damaged:
    return poet_storage_blocks(&l->port) != 0;
  default:
    return false;
  }
}

static POET_CHECKED int open(struct learning *l,
                             const struct poet_package *package,
                             const struct poet_device *device, uint8_t *memory,
                             uint32_t bytes) {
  struct needs needs;
  const bool stores = device->blocks && device->read && device->write;
  l->opened = 0;
  if (!is_package(package, &needs)) {
    return POET_ERROR_package;
  }
  const uint32_t places = poet_samples_places(package->slots, stores);
  const uint32_t place_bytes = stores ? 0 : learner_raw_bytes(package);
  if (!memory || (uintptr_t)memory % 8 ||
      place_bytes > INT32_MAX / (package->classes * places) ||
      bytes < POET_MEMORY_BYTES(needs.arena_bytes, needs.residents,
                                needs.transfers, needs.cached, needs.tensors,
                                package->classes, places, place_bytes)) {
    return POET_ERROR_memory;
  }
  if (device->erase_blocks > UINT16_MAX ||
      (device->erase_blocks && !device->erase)) {
    return POET_ERROR_storage_failed;
  }
  *l = (struct learning){.inside = l->inside,
                         .package = package,
                         .device = device,
                         .training = package->training,
                         .loss = NAN};
  l->training.own_blocks =
      stores ? own_blocks(package, learner_unit(device)) : 0;
  learner_make_port(l);
  divide(l, &needs, places, place_bytes, memory);
  const int error = load(l);
  l->opened = error ? is_refused(l, error) ? FAILED : 0 : OPENED;
  return error;
}

int poet_learner_open(struct poet_learner *learner,
                      const struct poet_package *package,
                      const struct poet_device *device, void *memory,
                      uint32_t bytes) {
  struct learning *l = learning_of(learner);
  if (learner_is_inside(l)) {
    return POET_ERROR_reentered;
  }
  const uint32_t opened = l->opened;
  const struct poet_device *lent = l->device;
  l->opened = FAILED;
  l->device = device;
  const int error = learner_enter(l, true, true);
  if (error) { /* the bus is busy */
    l->opened = opened;
    l->device = lent;
    return error;
  }
  return learner_leave(l, true, open(l, package, device, memory, bytes));
}

#endif
