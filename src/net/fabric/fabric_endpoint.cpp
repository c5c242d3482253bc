// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_endpoint.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <sched.h>

#include "base/deadline.hpp"
#include "base/try.hpp"
#include "boot/auth/secret.hpp"
#include "net/fabric/fabric_connections.hpp"
#include "net/fabric/signal_keeper.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kNameBytesMost = 1024;
constexpr int kLastTurns = 1024;

// Returns a keeper, since providers may install signal handlers when they open. shm cannot do
// without its handlers, so whoever has asked for shm keeps them.
std::unique_ptr<SignalKeeper> keep_signals(const FabricTable& table, const fi_info& info) {
  if (std::string_view(info.fabric_attr->prov_name) == "shm") return nullptr;
  return std::make_unique<SignalKeeper>(reinterpret_cast<const void*>(table.fi_getinfo));
}

// Returns whether the provider keeps a TCP connection to each peer. "net" is experimental in
// libfabric 1.17.
bool has_connections(const fi_info& info) {
  const std::string_view name = info.fabric_attr->prov_name;
  const std::string_view core = name.substr(0, name.find(';'));
  return core == "tcp" || core == "net";
}

}  // namespace

void leave_to_process(void* object) {
  // Allocates nothing, since destructors call this. Objects beyond the array look leaked.
  static std::array<std::atomic<void*>, 1024> left{};
  static std::atomic<std::size_t> count{0};
  const std::size_t place = count.fetch_add(1);
  if (place < left.size()) left[place] = object;
}

Error fabric_error(const FabricTable& table, const char* call, long status) {
  const int number = static_cast<int>(-status);
  return Error(ErrorCode::system,
               fmt::format("libfabric's {} failed: {}", call, table.fi_strerror(number)))
      .with_native(NativeDomain::os_errno, number);
}

Result<FabricEndpoint> FabricEndpoint::open(const FabricTable& table, FabricInfo info,
                                            std::size_t completions, std::size_t peers) {
  const auto keeper = keep_signals(table, *info.get());
  FabricEndpoint made(table, std::move(info));
  fi_info* const wanted = made.info_.get();
  fid_fabric* fabric = nullptr;
  int status = table.fi_fabric(wanted->fabric_attr, &fabric, nullptr);
  if (status != 0) return fabric_error(table, "fi_fabric", status);
  made.fabric_ = {table, fabric};

  fid_domain* domain = nullptr;
  status = table.fi_domain(fabric, wanted, &domain, nullptr);
  if (status != 0) return fabric_error(table, "fi_domain", status);
  made.domain_ = {table, domain};

  fi_av_attr av_attributes{};
  av_attributes.type = FI_AV_TABLE;
  av_attributes.count = peers;
  fid_av* addresses = nullptr;
  status = table.fi_av_open(domain, &av_attributes, &addresses, nullptr);
  if (status != 0) return fabric_error(table, "fi_av_open", status);
  made.addresses_ = {table, addresses};

  ORIEL_CHECK(made.open_completions(completions));
  ORIEL_CHECK(made.open_endpoint());
  return made;
}

Status FabricEndpoint::open_endpoint() {
  fid_ep* endpoint = nullptr;
  int status = table_->fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr);
  if (status != 0) return fabric_error(*table_, "fi_endpoint", status);
  endpoint_ = {*table_, endpoint};
  status = table_->fi_ep_bind(endpoint, &addresses_.get()->fid, 0);
  if (status != 0) {
    // Leaks the endpoint: rxm 1.17 crashes when an endpoint without addresses is closed.
    endpoint_.abandon();
    return fabric_error(*table_, "fi_ep_bind", status);
  }
  status = table_->fi_ep_bind(endpoint, &completions_.get()->fid, FI_TRANSMIT | FI_RECV);
  if (status != 0) return fabric_error(*table_, "fi_ep_bind", status);
  status = table_->fi_enable(endpoint);
  if (status != 0) return fabric_error(*table_, "fi_enable", status);
  return {};
}

Status FabricEndpoint::reopen(ByteView name) {
  if ((info().domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    return Error(ErrorCode::system, "memory is registered with the endpoint");
  }
  if (std::string_view(info().fabric_attr->prov_name).ends_with(";ofi_rxd")) {
    // rxd (1.17, 2.1) crashes on packets from peers that take the new endpoint for the old one.
    return Error(ErrorCode::system, "rxd's endpoints cannot come back at their address");
  }
  void* const address = std::malloc(name.size());  // fi_freeinfo() frees it
  if (address == nullptr) return Error(ErrorCode::system, "no memory for an address");
  std::memcpy(address, name.data(), name.size());
  std::free(info_->src_addr);
  info_->src_addr = address;
  info_->src_addrlen = name.size();
  // Threads nap instead of waiting from now on. rxm 1.17's fi_trywait() was once seen to crash
  // here: the queue seems to wait on closed descriptors too.
  wait_descriptor_ = -1;

  const auto keeper = keep_signals(*table_, info());
  Status opened = open_endpoint();
  if (opened.ok()) {
    const auto found = this->name();
    if (found.ok() && std::equal(found->begin(), found->end(), name.begin(), name.end())) return {};
    opened = found.ok() ? Status(Error(ErrorCode::system, "the endpoint has another address now"))
                        : Status(found.error());
  }
  endpoint_ = FabricObject<fid_ep>();  // no peer has this address
  return opened;
}

bool FabricEndpoint::close(bool may_drive) {
  if (endpoint_.get() == nullptr) return true;
  if (has_connections(info()) && !end_all(may_drive)) {
    leave_to_process();
    return false;
  }
  endpoint_ = FabricObject<fid_ep>();
  return true;
}

// Returns true once the endpoint has seen the end of each connection that can carry part of a read.
// A peer may reconnect again and again meanwhile. Such a connection does not count if it is newer
// than the last turn: no read was requested on it yet.
bool FabricEndpoint::end_all(bool may_drive) {
  const Deadline deadline = Deadline::after(kTimeout);
  std::optional<std::set<ino_t>> before;
  for (;;) {
    auto ended = end_connections(queue_descriptor_, false);
    if (!ended.has_value()) return false;
    const auto was_there = [&](ino_t one) { return !before.has_value() || before->contains(one); };
    if (std::none_of(ended->begin(), ended->end(), was_there)) break;
    if (!may_drive || deadline.expired(SteadyClock::instance().now())) return false;
    before = std::move(ended);
    if (!drive()) ::sched_yield();
  }
  // rxm has yet to process the events of these connections, one in each call. If it processed them
  // while it is closed, it would repost their receives to objects that are closed by then.
  for (int turn = 0; before.has_value() && turn < kLastTurns; ++turn) drive();
  return true;
}

bool FabricEndpoint::drive() {
  fi_cq_msg_entry entry{};
  fi_cq_err_entry failed{};
  const ssize_t count = table_->fi_cq_read(completions_.get(), &entry, 1);
  if (count == -FI_EAVAIL) table_->fi_cq_readerr(completions_.get(), &failed, 0);
  return count != -FI_EAGAIN;
}

void FabricEndpoint::leave_to_process() {
  static_cast<void>(end_connections(queue_descriptor_, true));
  wait_descriptor_ = -1;
  endpoint_.abandon();
  for (FabricMemory& one : memory_) one.abandon();
  completions_.abandon();
  addresses_.abandon();
  domain_.abandon();
  fabric_.abandon();
}

Status FabricEndpoint::open_completions(std::size_t completions) {
  fi_cq_attr attributes{};
  attributes.size = completions;
  attributes.format = FI_CQ_FORMAT_MSG;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  int status = table_->fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
  if (status == -FI_ENOSYS || status == -FI_EINVAL || status == -FI_EOPNOTSUPP) {
    attributes.wait_obj = FI_WAIT_NONE;  // efa's queue, for one, can only be polled
    status = table_->fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
  }
  if (status != 0) return fabric_error(*table_, "fi_cq_open", status);
  completions_ = {*table_, queue};
  if (attributes.wait_obj == FI_WAIT_NONE) return {};
  status = table_->fi_control(&queue->fid, FI_GETWAIT, &queue_descriptor_);
  if (status == -FI_ENOSYS || status == -FI_EOPNOTSUPP || status == -FI_ENODATA) {
    queue_descriptor_ = -1;  // sockets and udp have no descriptor
    return {};
  }
  if (status != 0) return fabric_error(*table_, "fi_control", status);
  wait_descriptor_ = queue_descriptor_;
  return {};
}

bool FabricEndpoint::may_sleep() const {
  fid* const queue = &completions_.get()->fid;
  std::array<fid*, 1> queues = {queue};
  return wait_descriptor_ >= 0 && table_->fi_trywait(fabric_.get(), queues.data(), 1) == 0;
}

Result<Bytes> FabricEndpoint::name() const {
  Bytes name(kNameBytesMost);
  std::size_t bytes = name.size();
  const int status = table_->fi_getname(&endpoint_.get()->fid, name.data(), &bytes);
  if (status != 0) return fabric_error(*table_, "fi_getname", status);
  name.resize(std::min(bytes, name.size()));
  return name;
}

Result<fi_addr_t> FabricEndpoint::add(ByteView address) {
  fi_addr_t made = FI_ADDR_UNSPEC;
  const int count = table_->fi_av_insert(addresses_.get(), address.data(), 1, &made, 0, nullptr);
  if (count < 0) return fabric_error(*table_, "fi_av_insert", count);
  if (count != 1 || made == FI_ADDR_UNSPEC)
    return fabric_error(*table_, "fi_av_insert", -FI_EINVAL);
  return made;
}

Result<void*> FabricEndpoint::register_memory(std::byte* memory, std::size_t bytes) {
  fid_mr* region = nullptr;
  const std::uint64_t key = memory_.size();  // used if the provider does not choose the key
  const int status = table_->fi_mr_reg(domain_.get(), memory, bytes, FI_SEND | FI_RECV, 0, key, 0,
                                       &region, nullptr);
  if (status != 0) return fabric_error(*table_, "fi_mr_reg", status);
  memory_.emplace_back(*table_, region);
  return table_->fi_mr_desc(region);
}

Result<FabricMemory> FabricEndpoint::register_for(std::uint64_t access, const std::byte* memory,
                                                  std::size_t bytes) {
  // Random key, used if the provider leaves the choice: whoever can connect may guess keys.
  const std::size_t width = std::clamp<std::size_t>(info().domain_attr->mr_key_size, 1, 8);
  const std::uint64_t requested_key = boot::random_number() >> (64 - 8 * width);
  fid_mr* region = nullptr;
  const int status = table_->fi_mr_reg(domain_.get(), memory, bytes, access, 0, requested_key, 0,
                                       &region, nullptr);
  if (status != 0) return fabric_error(*table_, "fi_mr_reg", status);
  return FabricMemory(*table_, region);
}

}  // namespace oriel::net
