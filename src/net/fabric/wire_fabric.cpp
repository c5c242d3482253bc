// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/wire_fabric.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "oriel/device/memory.hpp"

#include "base/short_memory.hpp"
#include "base/try.hpp"
#include "net/fabric/fabric_provider.hpp"
#include "net/fabric/wire_fabric_state.hpp"

namespace oriel::net {

using namespace fabric;

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kEntriesMost = 16;  // taken from the completion queue at a time
constexpr int kReadsMost = 8;             // of that, in one call
constexpr std::uint32_t kBuffersLeast = 4;
constexpr std::uint32_t kBuffersMost = 4096;
constexpr std::size_t kPeersExpected = 64;
// Unless FI_OFI_RXM_BUFFER_SIZE and FI_OFI_RXM_SAR_LIMIT say otherwise, of which it tells nobody.
constexpr std::size_t kRxmEagerBytes = std::size_t{16} << 10;
constexpr std::size_t kRxmSegmentsMost = 8;

std::size_t round_up(std::size_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

Error no_payload() {
  return Error(ErrorCode::remote, "a message of a NIC has its payload in no frame");
}

/// A message whose payload lies elsewhere than its head.
Result<WireMessage> join(ByteView head, ByteView payload) {
  ORIEL_TRY(WireHead read, decode_head(head, head.size() + payload.size()));
  if (payload.empty() || read.payload_bytes != payload.size()) return no_payload();
  payload_of(read.message) = Bytes(payload.begin(), payload.end());
  return std::move(read.message);
}

// Whether it speaks in its own name, and to a queue that is for it.
bool may_say(const Peer& sender, const WireMessage& message) {
  const auto* const request = std::get_if<WireRequest>(&message.body);
  if (request != nullptr && !(request->from == sender.address)) return false;
  const std::uint32_t queue =
      request != nullptr ? request->to_queue : std::get<WireResponse>(message.body).to_queue;
  return sender.queues.empty() ||
         std::find(sender.queues.begin(), sender.queues.end(), queue) != sender.queues.end();
}

}  // namespace

Status WireFabric::State::open() {
  const std::string provider = info->fabric_attr->prov_name;
  const std::uint32_t format = info->addr_format;
  ORIEL_TRY(
      FabricEndpoint opened,
      FabricEndpoint::open(table, std::move(info),
                           options.receives + options.sends + kFetchPartsMost + 1, kPeersExpected));
  endpoint.emplace(std::move(opened));
  lay_out();
  if (endpoint->needs_memory()) ORIEL_CHECK(register_buffers());
  ORIEL_TRY(own.address, endpoint->name());
  own.format = format;
  own.provider = provider;
  own.payload_bytes_most = options.payload_bytes_most;
  own.proves_payloads = options.prove_payloads;
  do own.id = boot::random_number();
  while (own.id == 0);
  boot::fill_random(own.nonce);
  encoded = encode(own);
  // What a peer would refuse is better found out here.
  ORIEL_CHECK(decode_fabric_address(encoded));
  return post_all();
}

// The buffers, by what the endpoint can do.
void WireFabric::State::lay_out() {
  const fi_info& found = endpoint->info();
  std::size_t longest = kBatchFrameBytesMost + options.payload_bytes_most;
  std::size_t parts = 2;
  if (std::string_view(found.fabric_attr->prov_name).ends_with(";ofi_rxm")) {
    constexpr std::size_t kPadded = kRxmSegmentsMost * kRxmEagerBytes + 1;
    longest = std::max(longest, kPadded);  // a peer's libfabric may be another
    if (FI_MAJOR(table.fi_version()) >= 2) {
      padding = {kRxmEagerBytes, kPadded};
      parts = 3;
    }
  }
  receive_bytes = round_up(longest);
  copies_payloads = endpoint->needs_memory() || found.tx_attr->iov_limit < parts;
  send_bytes = round_up(copies_payloads ? longest : kBatchFrameBytesMost);
  if (!copies_payloads && padding.bytes != 0) zeros = std::make_unique<std::byte[]>(padding.bytes);
  const std::size_t bytes = options.receives * receive_bytes + options.sends * send_bytes;
  memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  receives.resize(options.receives);
  unposted.reserve(options.receives);
  sends.resize(options.sends);
  std::byte* at = memory.get();
  for (std::uint32_t i = 0; i < options.receives; ++i, at += receive_bytes) {
    receives[i].operation.index = i;
    receives[i].memory = at;
  }
  for (std::uint32_t i = 0; i < options.sends; ++i, at += send_bytes) {
    sends[i].operation.kind = Operation::Kind::send;
    sends[i].operation.index = i;
    sends[i].heads = at;
    free.push_back(i);
  }
  fetch_parts.resize(kFetchPartsMost);
  for (std::uint32_t i = 0; i < kFetchPartsMost; ++i) {
    fetch_parts[i].operation.kind = Operation::Kind::fetch;
    fetch_parts[i].operation.index = i;
    free_parts.push_back(i);
  }
}

// Each buffer that is sent from is a region of its own: where regions are addressed from 0, rxm
// tells the peer to read a long message from the beginning of its region, wherever it lies in it.
Status WireFabric::State::register_buffers() {
  ORIEL_TRY(receive_descriptor,
            endpoint->register_memory(receives.front().memory, receives.size() * receive_bytes));
  for (Send& send : sends) {
    ORIEL_TRY(send.descriptor, endpoint->register_memory(send.heads, send_bytes));
  }
  return {};
}

Status WireFabric::State::post_all() {
  for (std::uint32_t i = 0; i < options.receives; ++i) {
    if (!post(i) && error.has_value()) return *error;
  }
  return {};
}

bool WireFabric::State::post(std::uint32_t buffer) {
  Receive& receive = receives[buffer];
  const ssize_t status =
      table.fi_recv(endpoint->endpoint(), receive.memory, receive_bytes, receive_descriptor,
                    FI_ADDR_UNSPEC, &receive.operation.context);
  if (status == 0) {
    ++posted;
    return true;
  }
  if (status != -FI_EAGAIN) note(fabric_error(table, "fi_recv", status));
  unposted.push_back(buffer);
  return false;
}

void WireFabric::State::post_again() {
  for (std::size_t i = unposted.size(); i > 0; --i) {
    const std::uint32_t buffer = unposted.back();
    unposted.pop_back();
    if (!post(buffer)) return;
  }
}

void WireFabric::State::poll() {
  if (is_cut) return;
  if (!with_batch.empty()) send_batches();
  post_again();
  std::array<fi_cq_msg_entry, kEntriesMost> entries{};
  for (int i = 0; i < kReadsMost; ++i) {
    const ssize_t count = table.fi_cq_read(endpoint->completions(), entries.data(), entries.size());
    if (count == -FI_EAGAIN) break;
    if (count == -FI_EAVAIL) {
      read_error();
      continue;
    }
    if (count < 0) {
      note(fabric_error(table, "fi_cq_read", count));
      break;
    }
    for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
      const void* const context = entries[n].op_context;
      if (context != nullptr) complete(*static_cast<const Operation*>(context), entries[n].len);
    }
    if (static_cast<std::size_t>(count) < entries.size()) break;
  }
  if (waiting_peers != 0) give_up_missing();
  if (!fetching.empty()) begin_fetches();
  device::arch::order_goes_abroad();  // libfabric may have sent what peers fetch
}

void WireFabric::State::read_error() {
  fi_cq_err_entry entry{};
  const ssize_t count = table.fi_cq_readerr(endpoint->completions(), &entry, 0);
  if (count == -FI_EAGAIN) return;
  if (count < 0) return note(fabric_error(table, "fi_cq_readerr", count));
  std::array<char, 128> text{};
  const char* const said = table.fi_cq_strerror(endpoint->completions(), entry.prov_errno,
                                                entry.err_data, text.data(), text.size());
  const auto* const operation = static_cast<const Operation*>(entry.op_context);
  const bool is_send = operation != nullptr && operation->kind == Operation::Kind::send;
  const bool is_fetch = operation != nullptr && operation->kind == Operation::Kind::fetch;
  Error failed(ErrorCode::system,
               fmt::format("{} failed: {} ({}: {}, {})",
                           is_send    ? "sending"
                           : is_fetch ? "fetching"
                                      : "receiving",
                           table.fi_strerror(entry.err), own.provider,
                           said != nullptr ? said : "no reason", entry.prov_errno));
  failed = std::move(failed).with_native(NativeDomain::os_errno, entry.err);
  if (operation == nullptr) return note(std::move(failed));
  if (is_fetch) {
    Peer& peer = *fetch_parts[operation->index].of->peer;
    peer.error = std::move(failed).with_context(fmt::format("fetching from {}", peer.name));
    return complete_part(operation->index, true);
  }
  if (is_send) {
    Send& send = sends[operation->index];
    if (send.peer != nullptr) lose(*send.peer, std::move(failed), send.messages);
    return complete_send(send);
  }
  --posted;
  // Longer than any message of ours: whoever sent it is no peer.
  if (entry.err == FI_ETRUNC) {
    ++counters.refused;
  } else {
    note(std::move(failed));
  }
  post(operation->index);
}

void WireFabric::State::complete(const Operation& operation, std::size_t bytes) {
  if (operation.kind == Operation::Kind::fetch) return complete_part(operation.index, false);
  if (operation.kind == Operation::Kind::send) {
    Send& send = sends[operation.index];
    if (send.peer != nullptr) send.peer->blocked_since.reset();
    return complete_send(send);
  }
  --posted;
  arrive(operation.index, bytes);
}

void WireFabric::State::complete_send(Send& send) {
  if (send.peer == nullptr) return;  // it was complete already
  --send.peer->on_the_way;
  send.peer = nullptr;
  send.payload = Bytes();
  send.payload_bytes = 0;
  send.batch_bytes = 0;
  send.messages = 0;
  free.push_back(send.operation.index);
}

void WireFabric::State::arrive(std::uint32_t buffer, std::size_t bytes) {
  const ByteView frame(receives[buffer].memory, std::min(bytes, receive_bytes));
  const auto head = read_frame(frame);
  Peer* const peer = head.has_value() ? find({head->from}) : nullptr;
  if (peer == nullptr || peer->is_cut ||
      !is_proven(peer->incoming, frame, *head, peer->prove_payloads)) {
    ++counters.refused;
    post(buffer);
    return;
  }
  peer->error.reset();
  peer->sign.heard = options.clock->now();
  // Of frames that have left, the last that can be meant.
  const std::uint32_t behind = static_cast<std::uint32_t>(peer->next_out) - head->accepted;
  if (behind <= peer->next_out) {
    peer->sign.arrived = std::max(peer->sign.arrived, peer->next_out - behind);
  }
  accept(*peer, buffer, *head);
}

void WireFabric::State::accept(Peer& peer, std::uint32_t buffer, const FrameHead& head) {
  if (head.sequence < peer.next_in || peer.early.contains(head.sequence)) {
    ++counters.late;
    post(buffer);
    return;
  }
  if (head.sequence > peer.next_in) {
    if (peer.early.empty()) {
      peer.waiting_since = options.clock->now();
      ++waiting_peers;
    }
    despite_short_memory([&] { peer.early.emplace(head.sequence, Peer::Early{buffer, head}); });
    return;
  }
  despite_short_memory([&] { arrived.push_back({&peer, buffer, head}); });
  ++peer.next_in;
  if (peer.early.empty()) return;
  // Several long ones may be missing, which come one after the other.
  peer.waiting_since = peer.sign.heard;
  take_early(peer);
}

void WireFabric::State::take_early(Peer& peer) {
  bool any = false;
  while (!peer.early.empty() && peer.early.begin()->first == peer.next_in) {
    const Peer::Early& next = peer.early.begin()->second;
    despite_short_memory([&] { arrived.push_back({&peer, next.buffer, next.head}); });
    peer.early.erase(peer.early.begin());
    ++peer.next_in;
    any = true;
  }
  if (peer.early.empty()) {
    --waiting_peers;
  } else if (any) {
    peer.waiting_since = options.clock->now();
  }
}

void WireFabric::State::give_up_missing() {
  const TimePoint now = options.clock->now();
  // Buffers are matched in the order of sending, so without one that is posted none can come that
  // was sent before those that are here.
  const bool none_can_come = posted == 0 && arrived.empty() && unposted.empty();
  for (auto& [id, peer] : peers) {
    if (peer->early.empty()) continue;
    if (!none_can_come && now - peer->waiting_since < options.patience) continue;
    ++counters.skipped;
    peer->next_in = peer->early.begin()->first;
    take_early(*peer);
  }
}

Peer* WireFabric::State::find(WireAddress address) {
  // The last one is the next one, as a rule.
  if (last_peer != nullptr && last_peer->address == address) return last_peer;
  const auto it = peers.find(address.value);
  if (it == peers.end()) return nullptr;
  last_peer = it->second.get();
  return last_peer;
}

Result<WireMessage> WireFabric::State::read(Arrived& from) {
  const ByteView bytes = view(from.buffer, from.head).subspan(kFrameHeadBytes);
  const ByteView batch = bytes.first(from.head.batch_bytes);
  const ByteView payload = bytes.subspan(from.head.batch_bytes);
  ByteView left = batch.subspan(from.taken);
  const BatchMessage next = next_of_batch(left);
  Result<WireMessage> message = !next.has_payload_behind ? decode_message(next.bytes)
                                : from.has_payload       ? join(next.bytes, payload)
                                                         : no_payload();
  if (next.has_payload_behind) from.has_payload = false;
  // Behind what makes no sense nothing does.
  from.taken = message.ok() && !is_at_end(left) ? batch.size() - left.size() : batch.size();
  return message;
}

void WireFabric::State::note(Error failed) {
  if (!error.has_value()) error = std::move(failed);
}

WireFabric::WireFabric(std::unique_ptr<State> state) : state_(std::move(state)) {}
WireFabric::~WireFabric() = default;

void WireFabric::prepare(const std::string& provider) {
  if (fabric_stand_in() != nullptr || !fabric_library().missing.empty()) return;
  if (provider.starts_with("shm")) return;  // whose handlers of signals would be taken off
  static const bool has_looked = (look_for_fabrics(fabric_library().table), true);
  static_cast<void>(has_looked);
}

Result<std::unique_ptr<WireFabric>> WireFabric::create(const Options& options) {
  for (const std::uint32_t buffers : {options.receives, options.sends}) {
    if (buffers >= kBuffersLeast && buffers <= kBuffersMost) continue;
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a fabric wire has {} to {} buffers for either direction, not {}",
                             kBuffersLeast, kBuffersMost, buffers));
  }
  if (options.payload_bytes_most == 0 || options.payload_bytes_most > kPieceBytesMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a fabric wire carries messages of 1 to {} bytes, not of {}",
                             kPieceBytesMost, options.payload_bytes_most));
  }
  const FabricTable* table = options.table != nullptr ? options.table : fabric_stand_in();
  if (table == nullptr) {
    const FabricLibrary& library = fabric_library();
    if (!library.missing.empty()) {
      return Error(ErrorCode::invalid_usage, library.missing)
          .with_hint("install the package libfabric1 on every host");
    }
    table = &library.table;
  }
  FabricWish wish;
  wish.provider = options.provider;
  wish.socket = options.socket;
  wish.message_bytes = kBatchFrameBytesMost + options.payload_bytes_most;
  ORIEL_TRY(FabricInfo info, choose_fabric(*table, wish));
  auto state = std::make_unique<State>(*table, options, std::move(info));
  ORIEL_CHECK(state->open());
  return std::unique_ptr<WireFabric>(new WireFabric(std::move(state)));
}

Bytes WireFabric::local_address() const {
  return state_->encoded;
}

std::string WireFabric::provider() const {
  return state_->own.provider;
}

WireAddress WireFabric::address() const {
  return {state_->own.id};
}

Result<WireAddress> WireFabric::add_peer(ByteView address, std::string name,
                                         std::vector<std::uint32_t> queues) {
  Result<FabricAddress> decoded = decode_fabric_address(address);
  if (!decoded.ok()) return std::move(decoded).error().with_context("the address of " + name);
  const FabricAddress& theirs = decoded.value();
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const FabricAddress& own = state.own;
  if (theirs.provider != own.provider || theirs.format != own.format ||
      theirs.address.size() != own.address.size()) {
    return Error(ErrorCode::remote,
                 fmt::format("{} is reached by {} (addresses of format {}, {} bytes), this rank by "
                             "{} (format {}, {} bytes)",
                             name, theirs.provider, theirs.format, theirs.address.size(),
                             own.provider, own.format, own.address.size()))
        .with_hint("set ORIEL_FABRIC_PROVIDER and ORIEL_SOCKET_IFNAME alike on all hosts");
  }
  if (theirs.id == own.id || state.peers.contains(theirs.id)) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the address of {} is that of {}", name,
                             theirs.id == own.id ? "this end" : state.peers.at(theirs.id)->name));
  }
  if (state.is_cut) return Error(ErrorCode::invalid_usage, "this end of the wire has been cut");
  auto peer = std::make_unique<Peer>();
  ORIEL_TRY(peer->where, state.endpoint->add(theirs.address));
  peer->name = std::move(name);
  peer->address = {theirs.id};
  peer->outgoing = frame_keys(state.options.key, own, theirs);
  peer->incoming = frame_keys(state.options.key, theirs, own);
  peer->prove_payloads = theirs.proves_payloads || own.proves_payloads;
  peer->payload_bytes_most = theirs.payload_bytes_most;
  peer->queues = std::move(queues);
  state.with_batch.reserve(state.peers.size() + 1);
  state.peers.emplace(theirs.id, std::move(peer));
  return WireAddress{theirs.id};
}

bool WireFabric::send(WireAddress to, WireMessage& message) {
  const std::lock_guard lock(state_->mutex);
  Peer* const peer = state_->is_cut ? nullptr : state_->find(to);
  if (peer != nullptr && !peer->is_cut) return state_->send(*peer, message);
  ++state_->counters.lost;
  return true;
}

bool WireFabric::receive(WireMessage& message) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.arrived.empty() && !state.has_polled) {
    state.poll();
    state.has_polled = true;
  }
  while (!state.arrived.empty()) {
    Arrived& next = state.arrived.front();
    const Peer& sender = *next.peer;
    Result<WireMessage> decoded = despite_short_memory([&] { return state.read(next); });
    if (next.taken == next.head.batch_bytes) {
      const std::uint32_t buffer = next.buffer;
      state.arrived.pop_front();
      state.post(buffer);
    }
    if (!decoded.ok() || !may_say(sender, decoded.value())) {
      ++state.counters.refused;
      continue;
    }
    ++state.counters.received;
    device::arch::order_comes_home();
    message = std::move(decoded).value();
    return true;
  }
  state.has_polled = false;
  return false;
}

void WireFabric::end_turn() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->is_cut && !state_->with_batch.empty()) state_->send_batches();
}

WireSign WireFabric::sign_of(WireAddress peer) {
  const std::lock_guard lock(state_->mutex);
  const Peer* const found = state_->find(peer);
  return found != nullptr ? found->sign : WireSign();
}

Status WireFabric::status() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->error.has_value()) return *state_->error;
  return {};
}

Status WireFabric::peer_status(WireAddress peer) const {
  const std::lock_guard lock(state_->mutex);
  const Peer* const found = state_->find(peer);
  if (found == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("this end has no peer {:#x}", peer.value));
  }
  if (found->error.has_value()) return *found->error;
  return {};
}

WireFabric::Counters WireFabric::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

int WireFabric::wait_descriptor() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_cut ? -1 : state_->endpoint->wait_descriptor();
}

bool WireFabric::may_sleep() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.is_cut) return false;
  const bool is_idle = state.arrived.empty() && state.unposted.empty() && state.fetching.empty() &&
                       state.free.size() == state.sends.size() && state.waiting_peers == 0;
  return is_idle && state.endpoint->may_sleep();
}

Status WireFabric::flush(Deadline deadline) {
  State& state = *state_;
  for (;;) {
    {
      const std::lock_guard lock(state.mutex);
      state.poll();
      const std::size_t left = state.sends.size() - state.free.size();
      if (left == 0 || state.is_cut) return {};
      if (deadline.expired(state.options.clock->now())) {
        return Error(ErrorCode::timeout,
                     fmt::format("{} messages have not left the fabric wire", left));
      }
    }
    ::sched_yield();
  }
}

}  // namespace oriel::net
