/*
 * ${name}.h - a learner (poet/learner.h) for the model
 * $model. Written by `poet-host package`.
 */
#ifndef ${name}_H
#define ${name}_H

#include "poet/learner.h"
#include "poet/package.h"

$lines
#ifdef __cplusplus
extern "C" {
#endif

extern const struct poet_package ${name}_package;
extern const char *const ${name}_class_names[];  /* of all classes */
extern const char *const ${name}_tensor_names[]; /* of all tensors */
extern const uint32_t ${name}_tensor_bytes[];

#ifdef __cplusplus
}
#endif

#endif
