// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/abi/api_entry.hpp"

#include <exception>

#include <fmt/format.h>

#include "base/settings.hpp"
#include "base/try.hpp"
#include "boot/session/rendezvous.hpp"
#include "comm/group/comm_entry.hpp"

namespace oriel::comm {

Result<boot::UniqueId> make_unique_id() {
  ORIEL_TRY(const Settings* settings, process_settings());
  boot::SocketOptions options;
  options.ifname = settings->socket_ifname;
  return boot::create_unique_id(options);
}

Status check_rank(int rank, int size) {
  if (size > boot::kMaxRanks) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} ranks; there can be at most {}", size, boot::kMaxRanks))
        .with_hint("pass the number of ranks that join, and divide larger jobs into communicators");
  }
  if (rank >= 0 && rank < size) return {};
  return Error(ErrorCode::invalid_argument, fmt::format("rank {} of {} ranks", rank, size))
      .with_hint("pass a rank from 0 to nranks - 1");
}

void end_without_memory(ncclComm_t handle) noexcept {
  try {
    const auto entry = handle != nullptr ? comm_table().get(handle) : nullptr;
    if (entry == nullptr || entry->inherited()) return;
    entry->abort(Error(ErrorCode::system, "out of memory").with_origin(entry->rank()));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): peers' deadlines name the rank
  }
}

}  // namespace oriel::comm
