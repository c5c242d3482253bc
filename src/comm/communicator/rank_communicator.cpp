// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/rank_communicator.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/communicator/communicator_start.hpp"
#include "comm/communicator/step_times.hpp"
#include "comm/communicator/teams_network.hpp"
#include "comm/communicator/wait_control.hpp"
#include "net/fabric/wire_fabric.hpp"

namespace oriel::comm {
namespace {

/// Returns whether the settings suggest that ranks will be connected by libfabric. The ranks of
/// different hosts may use it even otherwise.
bool asks_for_fabric(const Settings& settings) {
  const bool is_asked_for = settings.wire == WireChoice::fabric || !settings.paths.empty();
  return is_asked_for && settings.nic == NicKind::soft;
}

/// Returns a bandwidth class in GB/s, and `otherwise` if it is not known.
double gb_per_s_of(std::uint8_t bandwidth_class, double otherwise) {
  return bandwidth_class == 0 ? otherwise : topo::middle_gbps(bandwidth_class) / 8;
}

}  // namespace

Communicator::Communicator(Device& device, const Settings& settings, CommunicatorOptions options)
    : parts_{.device = &device,
             .backend = device.backend(),
             .settings = &settings,
             .options = std::move(options)} {}

Communicator::~Communicator() {
  failure_.stop_watching();
  if (parts_.network != nullptr) {
    // A peer that still sends requests to this rank must learn why it gets no answer.
    parts_.session->leave();
    try {
      parts_.network->leave();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the windows wait longer
    }
    parts_.network->remove_doorbell(*own_doorbell(parts_));  // the doorbell lies in a window
  }
  parts_.windows.reset();
  parts_.live_network = nullptr;
  parts_.network.reset();
  // Frees only this rank's own mapping; the mappings of the window keep the memory itself.
  if (parts_.scratch != nullptr) static_cast<void>(parts_.device->memory().free(parts_.scratch));
}

Task<Result<std::shared_ptr<Communicator>>> Communicator::join(EventLoop& loop,
                                                               JoinRequest request) {
  ORIEL_CO_TRY(const Settings* settings, process_settings());
  std::shared_ptr<Communicator> self(new Communicator(*request.device, *settings, request.options));
  // Done before any rank waits for this rank, and before the deadline is set.
  if (request.size > 1 && asks_for_fabric(*settings)) {
    net::WireFabric::prepare(settings->fabric_provider);
  }
  const Deadline deadline = Deadline::after(settings->timeout, loop.clock());
  const std::string title = title_of(request.options, request.rank, request.size);
  const int rank = request.rank;
  StepTimes times;
  boot::SessionOptions options;
  options.socket.ifname = settings->socket_ifname;
  auto joined = co_await boot::Session::join(loop, request.id, rank, request.size,
                                             std::move(options), deadline);
  Status done;
  if (joined.ok()) {
    times.end("rendezvous");
    std::unique_ptr<boot::Session> session = std::move(joined).value();
    CommunicatorStart start(loop, self->parts_, self->failure_, deadline);
    done = co_await start.run(std::move(session), times);
  } else {
    done = std::move(joined).error();
  }
  if (!done.ok()) {
    co_return as_seen_by(rank, std::move(done).error())
        .with_scope(Scope::communicator)
        .with_context("joining " + title);
  }
  co_return self;
}

Result<EventLoop> make_loop(Communicator& communicator) {
  auto loop = EventLoop::create();
  if (loop.ok()) return loop;
  communicator.abort(loop.error());
  return *communicator.async_error();
}

template <typename T>
Task<T> Communicator::concluded(Task<T> call) {
  std::optional<T> outcome;
  try {
    outcome.emplace(co_await std::move(call));
  } catch (const std::bad_alloc&) {
    outcome.emplace(run_out_of_memory(*this));
  }
  if (outcome->ok()) co_return std::move(*outcome);
  detect_failure();
  co_return as_seen_by(rank(), std::move(*outcome).error());
}

Task<Result<std::vector<void*>>> Communicator::register_windows(
    EventLoop& loop, std::vector<window::WindowRequest> requests) {
  return concluded(register_batch(loop, std::move(requests)));
}

Task<Result<DeviceCommMemory>> Communicator::make_device_comm(EventLoop& loop,
                                                              DeviceCommRequest request) {
  return concluded(build_device_comm(loop, request));
}

Status Communicator::finalize() {
  ORIEL_CHECK(check_usable());
  parts_.executor->close();
  if (Status drained = drain(); !drained.ok()) {
    detect_failure();
    return as_seen_by(rank(), std::move(drained).error());
  }
  ORIEL_CHECK(check_usable());  // enqueued work may have failed
  parts_.has_finalized = true;
  parts_.session->leave();
  return {};
}

kernels::DurationFacts Communicator::duration_facts() const {
  const Topology& topology = parts_.topology;
  kernels::DurationFacts facts{.backend = parts_.backend,
                               .ranks = size(),
                               .teams = static_cast<int>(topology.teams.members.size())};
  if (on_host(parts_)) return facts;
  constexpr double kPciGbPerS = 20;  // where no class is known
  std::uint8_t slowest = topo::kBandwidthClassMost;
  for (const topo::RankInfo& info : topology.infos) {
    const bool has_links = info.links_class != 0 && !info.keeps_apart;
    slowest = std::min(slowest, has_links ? info.links_class : info.host_class);
  }
  facts.team_gb_per_s = gb_per_s_of(slowest, kPciGbPerS);
  return facts;
}

Task<Result<std::vector<void*>>> Communicator::register_batch(
    EventLoop& loop, std::vector<window::WindowRequest> requests) {
  ORIEL_CO_CHECK(check_usable());
  const Deadline deadline = Deadline::after(parts_.settings->timeout, loop.clock());
  ORIEL_CO_TRY(const auto activity, parts_.session->activate(loop, deadline));
  std::vector<void*> handles;
  auto registered = co_await parts_.windows->register_batch(loop, boot::Operation::window_register,
                                                            std::move(requests), deadline);
  if (!registered.ok()) co_return std::move(registered).error();
  for (const auto& window : registered.value()) handles.push_back(window.handle);
  co_return std::move(handles);
}

Status Communicator::deregister_window(const void* handle) {
  if (handle == parts_.control.handle) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} is the communicator's own window", handle))
        .with_hint("deregister only windows that ncclCommWindowRegister has returned");
  }
  return parts_.windows->deregister(handle);
}

Status Communicator::drain() {
  constexpr auto kSlice = std::chrono::milliseconds(20);
  const Clock& clock = SteadyClock::instance();
  std::optional<Deadline> grace;
  for (;;) {
    Status drained = parts_.executor->drain(Deadline::after(kSlice, clock));
    if (drained.ok()) flush_network(parts_);
    if (drained.ok() || drained.error().code() != ErrorCode::timeout) return drained;
    if (!parts_.has_failed) continue;
    if (!grace) grace = Deadline::after(kDrainGrace, clock);
    if (grace->expired(clock.now())) return drained;
  }
}

Error run_out_of_memory(Communicator& communicator) {
  Error reason = Error(ErrorCode::system, "out of memory").with_origin(communicator.rank());
  communicator.abort(reason);
  return reason;
}

}  // namespace oriel::comm
