// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/wire_fabric_state.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "oriel/device/memory.hpp"

#include "base/alignment.hpp"
#include "base/try.hpp"

namespace oriel::net {

using namespace fabric;

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kEventsMost = 16;  // taken from the completion queue in one read
constexpr int kReadsMost = 8;            // reads of the completion queue in one poll()
constexpr std::size_t kPeersExpected = 64;
// rxm's defaults. FI_OFI_RXM_BUFFER_SIZE and FI_OFI_RXM_SAR_LIMIT change them, and no call returns
// them.
constexpr std::size_t kRxmEagerBytes = std::size_t{16} << 10;
constexpr std::size_t kRxmSegmentsMost = 8;

const char* name_of(Operation::Kind kind) {
  switch (kind) {
    case Operation::Kind::send:
      return "sending";
    case Operation::Kind::rendezvous_read:
      return "reading";
    default:
      return "receiving";
  }
}

}  // namespace

WireFabric::State::~State() {
  // Closes the endpoint before the memory that it uses. Drives it only if no target or source of a
  // rendezvous read is in use, since the owners may already have freed that memory.
  const bool may_drive = !reads.is_reading() && !reads.has_exposed();
  if (end.endpoint.has_value()) end.endpoint->close(may_drive);
  reads.drop();
  end.endpoint.reset();
}

Status WireFabric::State::open() {
  const std::string provider = info->fabric_attr->prov_name;
  const std::uint32_t format = info->addr_format;
  const Options& options = end.options;
  ORIEL_TRY(
      FabricEndpoint opened,
      FabricEndpoint::open(end.table, std::move(info),
                           options.receives + options.sends + kReadPartsMost + 1, kPeersExpected));
  end.endpoint.emplace(std::move(opened));
  ORIEL_CHECK(open_parts());
  FabricAddress& own = end.own;
  ORIEL_TRY(own.address, end.endpoint->name());
  own.format = format;
  own.provider = provider;
  own.payload_bytes_most = options.payload_bytes_most;
  own.authenticates_payloads = options.authenticate_payloads;
  do own.id = boot::random_number();
  while (own.id == 0);
  boot::fill_random(own.nonce);
  encoded = encode(own);
  // Refuses an own address that a peer would refuse.
  ORIEL_CHECK(decode_fabric_address(encoded));
  receiver.post_free();
  if (end.error.has_value()) return *end.error;
  return {};
}

// Opens the parts, with buffers that suit the endpoint.
Status WireFabric::State::open_parts() {
  const fi_info& found = end.endpoint->info();
  std::size_t longest = kBatchFrameBytesMost + end.options.payload_bytes_most;
  std::size_t parts = 2;
  SendLayout layout;
  if (std::string_view(found.fabric_attr->prov_name).ends_with(";ofi_rxm")) {
    constexpr std::size_t kPadded = kRxmSegmentsMost * kRxmEagerBytes + 1;
    longest = std::max(longest, kPadded);  // a peer's libfabric may be newer and pad
    if (FI_MAJOR(end.table.fi_version()) >= 2) {
      layout.padding = {kRxmEagerBytes, kPadded};
      parts = 3;
    }
  }
  layout.copies_payloads = end.endpoint->needs_memory() || found.tx_attr->iov_limit < parts;
  layout.buffer_bytes =
      round_up(layout.copies_payloads ? longest : kBatchFrameBytesMost, kLineBytes);
  ORIEL_CHECK(receiver.open(round_up(longest, kLineBytes)));
  ORIEL_CHECK(sender.open(layout));
  reads.open();
  return {};
}

void WireFabric::State::poll() {
  if (is_cut) return;
  sender.send_batches();
  receiver.post_again();
  std::array<fi_cq_msg_entry, kEventsMost> entries{};
  for (int i = 0; i < kReadsMost; ++i) {
    const ssize_t count =
        end.table.fi_cq_read(end.endpoint->completions(), entries.data(), entries.size());
    if (count == -FI_EAGAIN) break;
    if (count == -FI_EAVAIL) {
      read_error();
      continue;
    }
    if (count < 0) {
      end.note(fabric_error(end.table, "fi_cq_read", count));
      break;
    }
    for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
      const void* const context = entries[n].op_context;
      if (context != nullptr) complete(*static_cast<const Operation*>(context), entries[n].len);
    }
    if (static_cast<std::size_t>(count) < entries.size()) break;
  }
  receiver.give_up_missing();
  if (reads.is_reading()) reads.begin();
  device::arch::annotate_happens_before();  // libfabric may have sent bytes that peers read
}

void WireFabric::State::complete(const Operation& operation, std::size_t bytes) {
  switch (operation.kind) {
    case Operation::Kind::rendezvous_read:
      return reads.complete(operation.index);
    case Operation::Kind::send:
      return sender.complete(operation.index);
    default:
      return receiver.complete(operation.index, bytes);
  }
}

void WireFabric::State::read_error() {
  fi_cq_err_entry entry{};
  const ssize_t count = end.table.fi_cq_readerr(end.endpoint->completions(), &entry, 0);
  if (count == -FI_EAGAIN) return;
  if (count < 0) return end.note(fabric_error(end.table, "fi_cq_readerr", count));
  std::array<char, 128> text{};
  const char* const said = end.table.fi_cq_strerror(end.endpoint->completions(), entry.prov_errno,
                                                    entry.err_data, text.data(), text.size());
  const auto* const operation = static_cast<const Operation*>(entry.op_context);
  const auto kind = operation != nullptr ? operation->kind : Operation::Kind::receive;
  Error failed(
      ErrorCode::system,
      fmt::format("{} failed: {} ({}: {}, {})", name_of(kind), end.table.fi_strerror(entry.err),
                  end.own.provider, said != nullptr ? said : "no reason", entry.prov_errno));
  failed = std::move(failed).with_native(NativeDomain::os_errno, entry.err);
  if (operation == nullptr) return end.note(std::move(failed));
  switch (kind) {
    case Operation::Kind::rendezvous_read:
      return reads.fail(operation->index, std::move(failed));
    case Operation::Kind::send:
      return sender.fail(operation->index, std::move(failed));
    default:
      return receiver.fail(operation->index, entry.err, std::move(failed));
  }
}

bool WireFabric::State::send(Peer& peer, WireMessage& message) {
  if (sender.send(peer, message)) return true;
  poll();  // frames that have left make room
  return sender.send(peer, message) || sender.give_up(peer);
}

/// Ends all operations between this end and the peers in `whom`. Only closing the endpoint ends
/// them for certain. So it is closed once for all of these peers and reopened for the others.
void WireFabric::State::cut(const std::vector<Peer*>& whom) {
  if (is_cut) return;
  for (Peer* const peer : whom) {
    peer->error = Error(ErrorCode::timeout,
                        "the wire to " + peer->name +
                            " was cut: it did not release memory that had to be deregistered");
    peer->is_cut = true;
  }
  const bool is_closed = end.endpoint->close(true);
  reads.cut();
  sender.forget();
  end.peers.for_each([this](Peer& peer) {
    if (peer.is_cut) receiver.forget(peer);
  });
  Status opened;
  if (is_closed) {
    drain_completions();
    opened = end.endpoint->reopen(end.own.address);
  } else {
    opened = Error(ErrorCode::system, "libfabric's connections could not be ended");
  }
  if (opened.ok()) return receiver.post_free();
  is_cut = true;
  receiver.forget_all();
  end.note(std::move(opened).error().with_context(
      "the wire was cut: a peer did not release memory that had to be deregistered"));
}

/// Drains the completions of a closed endpoint.
void WireFabric::State::drain_completions() {
  const Options& options = end.options;
  for (std::size_t left = options.receives + options.sends + kReadPartsMost + 1; left > 0; --left) {
    fi_cq_msg_entry entry{};
    const ssize_t count = end.table.fi_cq_read(end.endpoint->completions(), &entry, 1);
    fi_cq_err_entry failed{};
    if (count == -FI_EAVAIL) {
      if (end.table.fi_cq_readerr(end.endpoint->completions(), &failed, 0) < 0) return;
    } else if (count <= 0) {
      return;
    }
  }
}

}  // namespace oriel::net
