// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_server_cuda.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "net/copy/copy_stream_cuda.hpp"
#include "net/process/nic_process_socket.hpp"
#include "net/process/nic_server_channel_cuda.hpp"

namespace oriel::net {
namespace {

using std::chrono::microseconds;
constexpr microseconds kServeFor{500};        // after the last command
constexpr microseconds kOutsideEvery{50};     // while it polls rings
constexpr std::uint32_t kTurnsPerYield = 16;  // without work
constexpr int kSleepMilliseconds = 1000;
constexpr int kNapMilliseconds = 20;  // while something is under way
constexpr std::size_t kChannelsMost = 4096;
constexpr std::size_t kRegionsMost = std::size_t{1} << 20;
constexpr std::chrono::seconds kTakeAnswerMost{5};

Error not_served(std::string why) {
  return Error(ErrorCode::remote, std::move(why));
}

}  // namespace

NicServer::NicServer(OwnedFd socket) : socket_(std::move(socket)) {
  // Watches the rank's process besides the socket: a forked child of the rank may hold the other
  // end open.
  ucred maker{};
  socklen_t bytes = sizeof maker;
  if (sys().getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &maker, &bytes) == 0 &&
      bytes == sizeof maker && maker.pid > 0) {
    rank_ = OwnedFd(sys().pidfd_open(maker.pid, 0));
  }
}

NicServer::~NicServer() {
  channels_.clear();
  regions_.clear();
}

Result<CUdevice> NicServer::find_gpu(const GpuUuid& wanted) const {
  ORIEL_CHECK(cuda_ready());
  int count = 0;
  ORIEL_CHECK(cuda_status("counting devices", cuda().device_get_count(&count)));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUuuid uuid{};
    ORIEL_CHECK(cuda_status("opening a device", cuda().device_get(&device, ordinal)));
    ORIEL_CHECK(cuda_status("reading a device's UUID", cuda().device_get_uuid(&uuid, device)));
    static_assert(sizeof uuid.bytes == std::tuple_size_v<GpuUuid>);
    if (std::memcmp(uuid.bytes, wanted.data(), wanted.size()) == 0) return device;
  }
  return not_served(fmt::format("none of the {} GPUs that it sees is the rank's", count));
}

Status NicServer::serve_hello(const nic_request::Hello& hello, OwnedFd descriptor) {
  if (scope_) return not_served("a second hello");
  if (hello.cpus != CpuMask{}) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (std::size_t cpu = 0; cpu < std::min<std::size_t>(CPU_SETSIZE, 64 * hello.cpus.size());
         ++cpu) {
      if ((hello.cpus[cpu / 64] >> cpu % 64 & 1) != 0) CPU_SET(cpu, &cpus);
    }
    // If the processors are not allowed, the process keeps those it has.
    static_cast<void>(sys().sched_setaffinity(0, sizeof cpus, &cpus));
  }
  ORIEL_TRY(device_, find_gpu(hello.gpu));
  ORIEL_CHECK(check_copy_streams(device_));
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device_));
  context_.emplace(std::move(context));
  ORIEL_TRY(CudaScope scope, CudaScope::enter(context_->get()));
  scope_.emplace(std::move(scope));
  wake_event_ = std::move(descriptor);
  return {};
}

Status NicServer::serve_open(const nic_request::Open& open, OwnedFd descriptor) {
  if (channels_.contains(open.channel) || channels_.size() >= kChannelsMost) {
    return not_served(fmt::format("no stream {} can be opened", open.channel));
  }
  ORIEL_TRY(auto channel, NicServerChannel::make(open, descriptor));
  channels_.emplace(open.channel, std::move(channel));
  return {};
}

Status NicServer::serve_close(const nic_request::Close& close) {
  if (channels_.erase(close.channel) == 1) return {};
  return not_served(fmt::format("there is no stream {}", close.channel));
}

Status NicServer::serve_add(const nic_request::Add& add, OwnedFd descriptor) {
  if (regions_.contains(add.region) || regions_.size() >= kRegionsMost) {
    return not_served(fmt::format("no region {} can be added", add.region));
  }
  ORIEL_TRY(auto region, NicServerRegion::make(device_, add, descriptor));
  regions_.emplace(add.region, std::move(region));
  return {};
}

Status NicServer::serve_remove(const nic_request::Remove& remove) {
  if (regions_.erase(remove.region) == 1) return {};
  return not_served(fmt::format("there is no region {}", remove.region));
}

Status NicServer::serve(const NicRequest& request, OwnedFd descriptor) {
  if (descriptors_of(request) != (descriptor.valid() ? 1u : 0u)) {
    return not_served("a request with more or fewer descriptors than it needs");
  }
  if (const auto* const hello = std::get_if<nic_request::Hello>(&request)) {
    return serve_hello(*hello, std::move(descriptor));
  }
  if (!scope_) return not_served("a request before the hello");
  if (const auto* const open = std::get_if<nic_request::Open>(&request)) {
    return serve_open(*open, std::move(descriptor));
  }
  if (const auto* const close = std::get_if<nic_request::Close>(&request)) {
    return serve_close(*close);
  }
  if (const auto* const add = std::get_if<nic_request::Add>(&request)) {
    return serve_add(*add, std::move(descriptor));
  }
  return serve_remove(std::get<nic_request::Remove>(request));
}

Status NicServer::answer(const Status& outcome) {
  NicAnswer reply;
  reply.failed = !outcome.ok();
  if (reply.failed) {
    reply.native = outcome.error().native();
    reply.text = outcome.error().message();
    const std::string& hint = outcome.error().hint();
    if (!hint.empty()) reply.text += " (" + hint + ")";
  }
  const Bytes message = encode(reply);
  return send_nic_message(socket_, message, nullptr, Deadline::after(kTakeAnswerMost));
}

/// Serves a request if there is one. Returns false if the other end is closed.
Result<bool> NicServer::take_request() {
  ORIEL_TRY(NicMessage message, receive_nic_message(socket_));
  if (message.outcome == NicMessage::Outcome::closed) return false;
  if (message.outcome == NicMessage::Outcome::none) return true;
  auto request = decode_nic_request(message.bytes);
  Status outcome;
  if (!request.ok()) {
    outcome = request.error();
  } else if (message.lost_descriptor) {
    outcome = system_error("receiving a descriptor", EMFILE);
  } else if (message.cut) {
    outcome = not_served("a message that was cut");
  } else {
    outcome = serve(request.value(), std::move(message.descriptor));
  }
  static_cast<void>(answer(outcome));  // a closed socket is noticed next time
  // Without a GPU there is nothing to serve. After a malformed message the sender cannot be
  // trusted.
  if (!request.ok() || !scope_) return std::move(outcome).error();
  return true;
}

bool NicServer::turn_channels() {
  const auto find = [this](std::uint32_t number) -> const NicRegion* {
    const auto found = regions_.find(number);
    return found == regions_.end() ? nullptr : &found->second->region();
  };
  bool any = false;
  for (const auto& [number, channel] : channels_) any = channel->turn(find) || any;
  return any;
}

int NicServer::sleep_milliseconds() {
  const TimePoint now = SteadyClock::instance().now();
  bool any = false;
  for (const auto& [number, channel] : channels_) any = channel->watch(now) || any;
  return any ? kNapMilliseconds : kSleepMilliseconds;
}

void NicServer::set_asleep(bool asleep) {
  for (const auto& [number, channel] : channels_) channel->set_asleep(asleep);
}

bool NicServer::has_commands() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const auto& entry) { return entry.second->has_commands(); });
}

Result<bool> NicServer::poll_sockets(bool may_sleep) {
  int most = sleep_milliseconds();
  if (may_sleep) set_asleep(true);
  if (!may_sleep || has_commands()) most = 0;
  // poll() ignores negative descriptors.
  std::array<pollfd, 3> entries{pollfd{socket_.get(), POLLIN, 0}, pollfd{rank_.get(), POLLIN, 0},
                                pollfd{wake_event_.get(), POLLIN, 0}};
  const int ready = sys().poll(entries.data(), entries.size(), most);
  const int status = errno;
  if (may_sleep) set_asleep(false);
  if (ready < 0 && status != EINTR) {
    return system_error("waiting for what a software NIC is to copy", status);
  }
  if (ready <= 0) return true;
  if (entries[2].revents != 0) {
    eventfd_t rings = 0;
    static_cast<void>(sys().eventfd_read(wake_event_.get(), &rings));
  }
  if ((entries[1].revents & POLLIN) != 0) return false;
  return entries[0].revents == 0 ? Result<bool>(true) : take_request();
}

Status NicServer::run() {
  const Clock& clock = SteadyClock::instance();
  TimePoint last_work = clock.now();
  TimePoint outside_due = last_work;
  std::uint32_t idle_turns = 0;
  for (;;) {
    const bool worked = turn_channels();
    const TimePoint now = clock.now();
    if (worked) last_work = now;
    const bool is_idle = now - last_work >= kServeFor;
    if (is_idle || now >= outside_due) {
      outside_due = now + kOutsideEvery;
      const auto goes_on = poll_sockets(is_idle);
      if (!goes_on.ok()) return goes_on.error();
      if (!goes_on.value()) return {};
    } else if (!worked && ++idle_turns % kTurnsPerYield == 0) {
      std::this_thread::yield();
    }
  }
}

}  // namespace oriel::net
