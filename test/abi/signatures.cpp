// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "signatures.hpp"

#include ABI_HEADER

namespace {
template <typename T>
std::string spelled() {
  return __PRETTY_FUNCTION__;
}
}  // namespace

#define SIGNATURE(name)                      \
  {#name, spelled<decltype(&name)>()}, {     \
    "p" #name, spelled<decltype(&p##name)>() \
  }

Signatures ABI_SIGNATURES() {
  return {
      SIGNATURE(ncclGetVersion),         SIGNATURE(ncclGetUniqueId),
      SIGNATURE(ncclCommInitRank),       SIGNATURE(ncclCommInitRankConfig),
      SIGNATURE(ncclCommInitAll),        SIGNATURE(ncclCommCount),
      SIGNATURE(ncclCommUserRank),       SIGNATURE(ncclCommCuDevice),
      SIGNATURE(ncclCommGetAsyncError),  SIGNATURE(ncclCommFinalize),
      SIGNATURE(ncclCommDestroy),        SIGNATURE(ncclCommAbort),
      SIGNATURE(ncclGetErrorString),     SIGNATURE(ncclGetLastError),
      SIGNATURE(ncclMemAlloc),           SIGNATURE(ncclMemFree),
      SIGNATURE(ncclCommWindowRegister), SIGNATURE(ncclCommWindowDeregister),
      SIGNATURE(ncclAllReduce),          SIGNATURE(ncclRedOpCreatePreMulSum),
      SIGNATURE(ncclRedOpDestroy),       SIGNATURE(ncclGroupStart),
      SIGNATURE(ncclGroupEnd),           SIGNATURE(ncclCommSplit),
  };
}
