// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/handle_transfer.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {

HandleTransfer::HandleTransfer(TeamProcesses& processes, const boot::Group& team, Memory& memory,
                               std::vector<std::vector<SegmentInfo>> wanted)
    : processes_(processes), team_(team), memory_(memory), wanted_(std::move(wanted)) {}

Result<OfferMessage> HandleTransfer::make_offer() {
  OfferMessage offer;
  for (const SegmentInfo& info : wanted_[processes_.own()]) {
    const AllocationRef allocation = AllocationTable::instance().find(info.id);
    if (allocation == nullptr) {
      return Error(ErrorCode::internal,
                   fmt::format("allocation {} of this process is unknown to it", info.id.serial));
    }
    ORIEL_TRY(ShareableHandle handle, memory_.export_handle(*allocation));
    if (auto* fabric = std::get_if<FabricHandle>(&handle)) {
      offer.handles.emplace_back(*fabric);
    } else if (processes_.spans_domains()) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("memory of {} bytes has no fabric handle, by which alone it could "
                               "travel to the ranks of its team on other nodes",
                               info.bytes))
          .with_hint("create it with CU_MEM_HANDLE_TYPE_FABRIC too, or with ncclMemAlloc");
    } else {
      offer.handles.emplace_back();
      outgoing_.push_back(std::get<OwnedFd>(std::move(handle)));
    }
  }
  return offer;
}

std::size_t HandleTransfer::due_from(int slot) const {
  for (std::size_t process = 0; process < wanted_.size(); ++process) {
    if (processes_.slots_of(process).front() == slot) return wanted_[process].size();
  }
  return 0;  // another rank speaks for its process
}

Status HandleTransfer::take_offers(std::vector<OfferMessage> offers) {
  for (std::size_t process = 0; process < processes_.count(); ++process) {
    const int slot = processes_.slots_of(process).front();
    OfferMessage& offer = offers[static_cast<std::size_t>(slot)];
    const auto& handles = offer.handles;
    if (processes_.spans_domains() &&
        std::find(handles.begin(), handles.end(), std::nullopt) != handles.end()) {
      return Error(ErrorCode::remote, "a file descriptor is announced to ranks of other nodes")
          .with_origin(team_.world_rank(slot));
    }
    offers_.push_back(std::move(offer));
  }
  return {};
}

Task<Status> HandleTransfer::import_all(EventLoop& loop, Deadline deadline) {
  auto arrived = co_await receive_descriptors(loop, deadline);
  if (arrived.ok()) co_return import_arrived(std::move(arrived).value());
  // Disconnects, so that no other process waits for descriptors that this one can no longer send.
  processes_.disconnect();
  co_return std::move(arrived).error();
}

/// Returns no descriptors if there is no exchange: no other process of this domain.
Task<Result<HandleTransfer::Descriptors>> HandleTransfer::receive_descriptors(EventLoop& loop,
                                                                              Deadline deadline) {
  FdExchange* const exchange = processes_.exchange();
  if (exchange == nullptr) co_return Descriptors();
  if (!exchange->connected()) {
    ORIEL_CO_CHECK(co_await exchange->authenticate(loop, deadline));
  }
  std::vector<std::size_t> counts;
  for (std::size_t process = 0; process < offers_.size(); ++process) {
    if (!processes_.place_of(process)) continue;
    const auto& handles = offers_[process].handles;
    counts.push_back(
        static_cast<std::size_t>(std::count(handles.begin(), handles.end(), std::nullopt)));
  }
  co_return co_await exchange->exchange(loop, std::move(outgoing_), std::move(counts), deadline);
}

Status HandleTransfer::import_arrived(Descriptors arrived) {
  for (std::size_t process = 0; process < offers_.size(); ++process) {
    if (process == processes_.own()) continue;
    std::size_t next_fd = 0;
    for (std::size_t i = 0; i < wanted_[process].size(); ++i) {
      const auto& fabric = offers_[process].handles[i];
      // A descriptor comes only from a process with a place in the exchange.
      ShareableHandle handle =
          fabric ? ShareableHandle(*fabric)
                 : ShareableHandle(std::move(arrived[*processes_.place_of(process)][next_fd++]));
      Status done = import_one(std::move(handle), wanted_[process][i]);
      if (done.ok()) continue;
      const int rank = team_.world_rank(processes_.slots_of(process).front());
      Error error =
          std::move(done).error().with_context(fmt::format("importing memory of rank {}", rank));
      if (error.code() != ErrorCode::remote) return error;
      return std::move(error).with_origin(rank);
    }
  }
  return {};
}

Status HandleTransfer::import_one(ShareableHandle handle, const SegmentInfo& info) {
  AllocationRef allocation = AllocationTable::instance().find(info.id);
  if (allocation == nullptr) {
    ORIEL_TRY(const AllocationRef made,
              memory_.import_handle(std::move(handle), info.id, info.bytes));
    // Another communicator may have imported the allocation in the meantime.
    allocation = AllocationTable::instance().publish(made);
  }
  if (allocation->bytes() != info.bytes) {
    return Error(ErrorCode::remote, fmt::format("an allocation of {} bytes was announced with {}",
                                                allocation->bytes(), info.bytes));
  }
  imported_.push_back(std::move(allocation));
  return {};
}

}  // namespace oriel::window
