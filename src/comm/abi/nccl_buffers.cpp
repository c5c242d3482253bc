// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <fmt/format.h>

#include "nccl.h"

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/group/comm_entry.hpp"

/// NCCL's registration of buffers for collectives, which is local to the rank.
namespace oriel::comm {
namespace {

Status register_buffer(ncclComm_t handle, void* address, std::size_t bytes, void** out) {
  ORIEL_CHECK(require(out, "handle"));
  *out = nullptr;
  ORIEL_TRY(const auto entry, find_entry(handle));
  ORIEL_TRY(const auto communicator, entry->communicator());
  ORIEL_CHECK(communicator->check_usable());
  if (address == nullptr && bytes > 0) return require(address, "buff");
  if (bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(address)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {} go beyond the address space", bytes, address))
        .with_hint("pass the address and the size in bytes of one buffer");
  }
  *out = entry->buffers().add({address, bytes});
  Log(entry->rank()).trace("registered {} bytes at {} for collectives", bytes, address);
  return {};
}

Status deregister_buffer(ncclComm_t handle, void* registration) {
  ORIEL_TRY(const auto entry, find_entry(handle));
  if (registration == nullptr) return {};
  ORIEL_TRY(const RegisteredBuffer buffer, entry->buffers().remove(registration));
  Log(entry->rank()).trace("deregistered {} bytes at {}", buffer.bytes, buffer.address);
  return {};
}

}  // namespace
}  // namespace oriel::comm

ORIEL_ENTRY(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void* buff, size_t size,
            void** handle) {
  return api::guard("ncclCommRegister",
                    [&] { return api::register_buffer(comm, buff, size, handle); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void* handle) {
  return api::guard("ncclCommDeregister", [&] { return api::deregister_buffer(comm, handle); });
}
