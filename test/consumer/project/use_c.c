/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Calls the C interface of an installed Oriel. */
#include <stdio.h>

#include <nccl.h>

int main(void) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 1;
  if (version != NCCL_VERSION_CODE) return 2;
  if (ncclGetVersion(NULL) != ncclInvalidArgument) return 3;
  printf("nccl %d through C\n", version);
  return 0;
}
