// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/cuda_tally.hpp"

#include <atomic>

#include <fmt/format.h>

namespace oriel::test {
namespace {

using Count = std::atomic<long>;

Count contexts, handles, reservations, mappings, buffers, streams, events;

CudaTable below;  // table that calls are passed on to

/// Adds `change` to a count with each call that succeeds.
template <auto member, Count* count, long change, typename Function>
struct Counted;

template <auto member, Count* count, long change, typename... Args>
struct Counted<member, count, change, CUresult (*)(Args...)> {
  static CUresult CUDAAPI call(Args... args) {
    const CUresult status = (below.*member)(args...);
    if (status == CUDA_SUCCESS) *count += change;
    return status;
  }
};

template <auto member, Count* count, long change, typename Function>
void count_calls(Function& entry) {
  entry = Counted<member, count, change, Function>::call;
}

const CudaTable& counting() {
  below = cuda();
  static CudaTable table;
  table = below;
#define ORIEL_DETAIL_COUNT(member, count, change) \
  count_calls<&CudaTable::member, &(count), change>(table.member)
  ORIEL_DETAIL_COUNT(device_primary_ctx_retain, contexts, 1);
  ORIEL_DETAIL_COUNT(device_primary_ctx_release, contexts, -1);
  ORIEL_DETAIL_COUNT(mem_create, handles, 1);
  ORIEL_DETAIL_COUNT(mem_import_from_shareable_handle, handles, 1);
  ORIEL_DETAIL_COUNT(mem_retain_allocation_handle, handles, 1);
  ORIEL_DETAIL_COUNT(mem_release, handles, -1);
  ORIEL_DETAIL_COUNT(mem_address_reserve, reservations, 1);
  ORIEL_DETAIL_COUNT(mem_address_free, reservations, -1);
  ORIEL_DETAIL_COUNT(mem_map, mappings, 1);
  ORIEL_DETAIL_COUNT(mem_unmap, mappings, -1);
  ORIEL_DETAIL_COUNT(mem_alloc, buffers, 1);
  ORIEL_DETAIL_COUNT(mem_free, buffers, -1);
  ORIEL_DETAIL_COUNT(mem_host_alloc, buffers, 1);
  ORIEL_DETAIL_COUNT(mem_free_host, buffers, -1);
  ORIEL_DETAIL_COUNT(stream_create, streams, 1);
  ORIEL_DETAIL_COUNT(stream_destroy, streams, -1);
  ORIEL_DETAIL_COUNT(event_create, events, 1);
  ORIEL_DETAIL_COUNT(event_destroy, events, -1);
#undef ORIEL_DETAIL_COUNT
  return table;
}

}  // namespace

bool CudaHoldings::within(const CudaHoldings& other) const {
  return contexts <= other.contexts && handles <= other.handles &&
         reservations <= other.reservations && mappings <= other.mappings &&
         buffers <= other.buffers && streams <= other.streams && events <= other.events;
}

std::string CudaHoldings::text() const {
  return fmt::format(
      "{} contexts, {} handles, {} reservations, {} mappings, {} buffers, {} streams, {} events",
      contexts, handles, reservations, mappings, buffers, streams, events);
}

CudaTally::CudaTally() : scoped_(counting()) {}

CudaTally::~CudaTally() = default;

CudaHoldings CudaTally::holdings() const {
  return {contexts, handles, reservations, mappings, buffers, streams, events};
}

}  // namespace oriel::test
