/* SPDX-FileCopyrightText: The Oriel authors */
/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <stddef.h>

#include ABI_HEADER

#define FACT(expression) \
  { #expression, (long long)(expression) }
#define FIELD(field)                                                 \
  {"offset of " #field, (long long)offsetof(ncclConfig_t, field)}, { \
    "size of " #field, (long long)sizeof(((ncclConfig_t*)0)->field)  \
  }

long long ABI_INITIAL(int which) {
  const ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  const long long values[] = {
      (long long)c.size,   c.magic,        c.version,          c.blocking,
      c.cgaClusterSize,    c.minCTAs,      c.maxCTAs,          c.netName == NULL,
      c.splitShare,        c.trafficClass, c.commName == NULL, c.collnetEnable,
      c.CTAPolicy,         c.shrinkShare,  c.nvlsCTAs,         c.nChannelsPerNetPeer,
      c.nvlinkCentricSched};
  return which < (int)(sizeof values / sizeof values[0]) ? values[which] : -1;
}

const struct AbiFact ABI_FACTS[] = {
    FACT(NCCL_MAJOR),
    FACT(NCCL_MINOR),
    FACT(NCCL_PATCH),
    FACT(NCCL_VERSION_CODE),
    FACT(NCCL_VERSION(2, 8, 4)),
    FACT(NCCL_VERSION(2, 28, 9)),
    FACT(NCCL_UNIQUE_ID_BYTES),
    FACT(NCCL_CONFIG_UNDEF_INT),
    FACT(NCCL_WIN_DEFAULT),
    FACT(NCCL_WIN_COLL_SYMMETRIC),
    FACT(NCCL_WIN_REQUIRED_ALIGNMENT),
    FACT(NCCL_CTA_POLICY_DEFAULT),
    FACT(NCCL_CTA_POLICY_EFFICIENCY),
    FACT(NCCL_CTA_POLICY_ZERO),
    FACT(ncclSuccess),
    FACT(ncclUnhandledCudaError),
    FACT(ncclSystemError),
    FACT(ncclInternalError),
    FACT(ncclInvalidArgument),
    FACT(ncclInvalidUsage),
    FACT(ncclRemoteError),
    FACT(ncclInProgress),
    FACT(ncclNumResults),
    FACT(ncclSum),
    FACT(ncclProd),
    FACT(ncclMax),
    FACT(ncclMin),
    FACT(ncclAvg),
    FACT(ncclNumOps),
    FACT(ncclMaxRedOp),
    FACT(ncclInt8),
    FACT(ncclChar),
    FACT(ncclUint8),
    FACT(ncclInt32),
    FACT(ncclInt),
    FACT(ncclUint32),
    FACT(ncclInt64),
    FACT(ncclUint64),
    FACT(ncclFloat16),
    FACT(ncclHalf),
    FACT(ncclFloat32),
    FACT(ncclFloat),
    FACT(ncclFloat64),
    FACT(ncclDouble),
    FACT(ncclBfloat16),
    FACT(ncclFloat8e4m3),
    FACT(ncclFloat8e5m2),
    FACT(ncclNumTypes),
    FACT(ncclScalarDevice),
    FACT(ncclScalarHostImmediate),
    FACT(sizeof(ncclUniqueId)),
    FACT(sizeof(ncclResult_t)),
    FACT(sizeof(ncclRedOp_t)),
    FACT(sizeof(ncclDataType_t)),
    FACT(sizeof(ncclScalarResidence_t)),
    FACT(sizeof(ncclComm_t)),
    FACT(sizeof(ncclWindow_t)),
    FACT(sizeof(cudaStream_t)),
    FACT(sizeof(ncclConfig_t)),
    FIELD(size),
    FIELD(magic),
    FIELD(version),
    FIELD(blocking),
    FIELD(cgaClusterSize),
    FIELD(minCTAs),
    FIELD(maxCTAs),
    FIELD(netName),
    FIELD(splitShare),
    FIELD(trafficClass),
    FIELD(commName),
    FIELD(collnetEnable),
    FIELD(CTAPolicy),
    FIELD(shrinkShare),
    FIELD(nvlsCTAs),
    FIELD(nChannelsPerNetPeer),
    FIELD(nvlinkCentricSched),
    {0, 0},
};
