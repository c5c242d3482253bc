/* SPDX-FileCopyrightText: The Oriel authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* The header is complete on its own in C99, and its values have the types that C callers expect. */
#include "nccl.h"

#define MUST_HOLD(name, condition) typedef char name[(condition) ? 1 : -1]

MUST_HOLD(unique_id_is_128_bytes, sizeof(ncclUniqueId) == 128);
MUST_HOLD(version_is_the_promised_one, NCCL_VERSION_CODE == NCCL_VERSION(2, 28, 9));
MUST_HOLD(config_is_80_bytes, sizeof(ncclConfig_t) == 80);
MUST_HOLD(operations_are_ints, ncclMaxRedOp == 0x7fffffff);

int main(void) {
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const cudaStream_t none = NULL;
  const ncclComm_t comm = NCCL_COMM_NULL;
  return config.size == sizeof config && config.blocking == NCCL_CONFIG_UNDEF_INT && none == NULL &&
                 comm == NULL
             ? 0
             : 1;
}
