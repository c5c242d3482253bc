// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "oriel/version.hpp"

#include "base/alignment.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "comm/communicator/step_times.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/network/network_places.hpp"
#include "kernels/plan/most_ranks.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "topo/machine/process_machine.hpp"

/// How a communicator starts. Every step is collective and ends with the same outcome on all ranks;
/// what the steps have made goes with the object if a later one fails.
namespace oriel::comm {
namespace {

/// The name of an algorithm; empty for automatic and for what another rank may have made up.
std::string name_of_choice(std::uint64_t choice) {
  static_assert(static_cast<int>(AlgorithmChoice::automatic) == 0 &&
                static_cast<int>(AlgorithmChoice::eager) == kernels::kAlgorithmCount);
  if (choice == 0 || choice > kernels::kAlgorithmCount) return {};
  return kernels::name_of(static_cast<kernels::Algorithm>(choice - 1));
}

// Of a CPU rank's scratch memory, this part is for collectives among teams.
constexpr std::uint64_t kHierarchyPart = 4;
// GPUs of one team make none of these, but tell each other of calls in the same place.
constexpr std::uint64_t kToldBytes = 64 << 10;
// What a CTA's packets and rings can use for each rank. Chunks of the built-in table that have no
// room are made smaller. Plans of fewer CTAs have more packets each, and fewer ranks larger chunks.
constexpr std::uint64_t kBytesOfCta = 192 << 10;
constexpr int kLeastCtas = 32;
constexpr int kLeastRanks = 4;

constexpr const char* kCtaLimitHint =
    "a CPU rank has one CTA; the ranks of a GPU divide its multiprocessors, and maxCTAs and "
    "ORIEL_MAX_CTAS set limits";

std::string text_of_choice(std::uint64_t choice) {
  std::string name = name_of_choice(choice);
  if (!name.empty()) return name;
  return choice == 0 ? "auto" : fmt::format("unknown algorithm {}", choice);
}

std::string text_of_slot(std::uint64_t bytes) {
  return bytes == 0 ? "automatic" : std::to_string(bytes);
}

std::string text_of_hash(std::uint64_t hash) {
  return fmt::format("one with the hash {:#018x}", hash);
}

// The same outcome on all ranks, for all know the same.
Status check_team_sizes(const topo::LsaTeams& teams, const std::vector<topo::RankInfo>& infos) {
  for (const auto& members : teams.members) {
    const auto kind = infos[static_cast<std::size_t>(members.front())].kind;
    const bool on_host = kind == topo::DeviceKind::host;
    const int most = kernels::most_ranks(on_host ? kernels::Backend::host : kernels::Backend::cuda);
    if (static_cast<int>(members.size()) <= most) continue;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} {} ranks on one node; there can be at most {}", members.size(),
                             on_host ? "CPU" : "GPU", most))
        .with_origin(members[static_cast<std::size_t>(most)])
        .with_hint("start fewer ranks on a node, or divide them into nodes (ORIEL_HOSTID)");
  }
  return {};
}

/// As in "as rank 1 of 4", with the communicator's name in front if the user gave it one.
std::string title_of(const CommunicatorOptions& options, int rank, int size) {
  const std::string name = options.name.empty() ? "" : fmt::format("\"{}\" ", options.name);
  return fmt::format("{}as rank {} of {}", name, rank, size);
}

/// Whether ranks may be joined by libfabric, as far as the settings tell; hosts may ask for it too.
bool asks_for_fabric(const Settings& settings) {
  const bool is_asked_for = settings.wire == WireChoice::fabric || !settings.paths.empty();
  return is_asked_for && settings.nic == NicKind::soft;
}

}  // namespace

GraphOrder graph_order(const Settings& settings, const CommunicatorOptions& options) {
  const bool is_mixed = settings.graph_mixing == GraphMixing::automatic
                            ? options.graph_mixing
                            : settings.graph_mixing == GraphMixing::on;
  if (is_mixed) return GraphOrder::all;
  return options.graph_stream_ordering ? GraphOrder::in_captures : GraphOrder::none;
}

namespace {

/// Returns RankInfo::cta_limit: the least of what the environment and the communicator's user
/// allow.
std::uint16_t cta_limit_of(const Settings& settings, int max_ctas) {
  std::int64_t limit = settings.max_ctas;
  if (limit == 0) limit = std::max<std::int64_t>(kDefaultMostCtas, settings.ctas);
  if (max_ctas > 0) limit = std::min<std::int64_t>(limit, max_ctas);
  return static_cast<std::uint16_t>(std::min<std::int64_t>(limit, topo::kCtasMost));
}

/// Refuses what the environment demands beyond `max_ctas`, the most CTAs of a collective.
Status check_limits(int max_ctas, const kernels::Overrides& overrides, kernels::Backend backend) {
  if (overrides.ctas > max_ctas) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("environment variable ORIEL_CTAS is {}, but {} is the most that a "
                             "collective can use here",
                             overrides.ctas, max_ctas))
        .with_hint(kCtaLimitHint);
  }
  if (overrides.algorithm == kernels::name_of(kernels::Algorithm::eager) &&
      backend != kernels::Backend::host) {
    return Error(ErrorCode::invalid_usage,
                 "environment variable ORIEL_ALGORITHM is eager, which GPUs do not have")
        .with_hint("use one_shot, two_shot or stream");
  }
  return {};
}

// Teams may have slots of different sizes; the ranks of one compute the same from what all know.
std::size_t choose_slot_bytes(const Settings& settings, const std::vector<int>& team,
                              const Topology& topology, window::MemoryKind kind) {
  if (settings.big_size_bytes != 0) return settings.big_size_bytes;
  std::uint64_t most = 0;
  for (const int member : team) {
    most = std::max(most, topology.infos[static_cast<std::size_t>(member)].memory_bytes);
  }
  return window::automatic_slot_bytes(kind, most, static_cast<int>(team.size()));
}

}  // namespace

Task<Result<std::shared_ptr<Communicator>>> Communicator::join(EventLoop& loop,
                                                               JoinRequest request) {
  ORIEL_CO_TRY(const Settings* settings, process_settings());
  std::shared_ptr<Communicator> self(new Communicator(*request.device, *settings, request.options));
  // Before any rank waits for this one, and the time counts.
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
    done = co_await self->set_up(loop, std::move(session), times, deadline);
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

Task<Status> Communicator::set_up(EventLoop& loop, std::unique_ptr<boot::Session> session,
                                  StepTimes& times, Deadline deadline) {
  session_ = std::move(session);
  flight_ = std::make_unique<FlightRecorder>(FlightFacts{.folder = settings_->dump_dir,
                                                         .communicator = session_->number(),
                                                         .name = options_.name,
                                                         .rank = rank(),
                                                         .size = size(),
                                                         .on_host = on_host()});
  {
    ORIEL_CO_TRY(const auto activity, session_->activate(loop, deadline));
    ORIEL_CO_CHECK(co_await agree_on_topology());
    times.end("topology");
    ORIEL_CO_CHECK(co_await agree_on_choices());
    times.end("choices");
    ORIEL_CO_CHECK(co_await make_scratch(loop, deadline));
    times.end("scratch memory");
    ORIEL_CO_CHECK(co_await make_control_window(loop, deadline));
    times.end("its window");
    ORIEL_CO_CHECK(co_await connect_teams(loop, deadline));
    times.end("network");
    session_->stop_listening();  // every rank has formed its team by now
    // Before they agree that they have started: from then on nothing may fail.
    Status watched = watch_ranks();
    std::vector<boot::AgreedField> none;
    ORIEL_CO_CHECK(co_await session_->world().agree(boot::Operation::join, std::move(watched),
                                                    std::move(none)));
  }
  times.end("monitor");
  times.write(rank(), title_of(options_, rank(), size()));
  tell_of_start();
  co_return Status();
}

/// Has the monitor look at the other ranks from now on.
Status Communicator::watch_ranks() {
  std::vector<Watch> processes;
  for (int rank = 0; rank < size(); ++rank) {
    const auto& info = topology_.infos[static_cast<std::size_t>(rank)];
    const auto& own = topology_.infos[static_cast<std::size_t>(this->rank())];
    if (info.process != own.process && topo::shares_pids(own, info)) {
      processes.push_back({rank, info.pid});
    }
  }
  const topo::Affinity affinity = affinity_of(*device_);
  Log(rank()).info("threads and memory of the library: {}", topo::describe(affinity));
  watched_ = true;
  return Monitor::instance().watch(*this, *session_, std::move(processes), affinity.cpus);
}

void Communicator::tell_of_start() const {
  if (rank() == 0 && log_enabled(LogLevel::version)) {
    Log(rank()).version("Oriel {} with the interface of NCCL {}.{}.{}", oriel::version(),
                        kNcclVersion / 10'000, kNcclVersion / 100 % 100, kNcclVersion % 100);
  }
  if (log_enabled(LogLevel::info)) {
    if (rank() == 0) Log(rank()).info("{}", topology_.summary());
    const std::string reach = topology_.reach_of(rank());
    if (!reach.empty()) Log(rank()).info("reaches {}", reach);
  }
  // One rank of each node, and nobody waits for it.
  const auto on_this_node = [&](const topo::RankInfo& info) {
    return info.node.host == topology_.infos[static_cast<std::size_t>(rank())].node.host;
  };
  const auto& infos = topology_.infos;
  if (std::find_if(infos.begin(), infos.end(), on_this_node) - infos.begin() == rank()) {
    topo::process_machine().dump_once(*settings_);
  }
}

Task<Status> Communicator::exchange_places(topo::Wanted wanted, bool first) {
  const topo::NodeIdentity node =
      topo::read_node_identity(settings_->host_id, topo::process_machine().sources().files);
  auto mine = device_->rank_info(node, *settings_, wanted);
  // An empty message stands for a failure here; the agreement behind the gathering tells why.
  Bytes message;
  if (mine.ok() && !on_host()) {
    mine->cta_limit = cta_limit_of(*settings_, options_.max_ctas);
    mine->keeps_apart = settings_->p2p_disable;
  }
  if (mine.ok()) message = first ? topo::encode(*mine) : topo::encode_supplement(*mine, wanted);
  auto gathered =
      co_await session_->world().all_gather(boot::Operation::topology, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  Status local = mine.ok() ? Status() : Status(std::move(mine).error());
  if (local.ok()) {
    const int most = kernels::most_ranks(kernels::Backend::cuda);
    auto made = first ? make_topology(gathered.value(), most)
                      : complete_topology(topology_, gathered.value(), most);
    if (made.ok()) {
      topology_ = std::move(made).value();
    } else {
      local = std::move(made).error();
    }
  }
  std::vector<boot::AgreedField> fields = {topology_.agreed_field()};
  co_return co_await session_->world().agree(boot::Operation::topology, std::move(local),
                                             std::move(fields));
}

Task<Status> Communicator::agree_on_topology() {
  ORIEL_CO_CHECK(co_await exchange_places({}, true));
  // What is slow to find is looked for only where the ranks' places leave it open.
  if (topology_.paths.leave_questions()) {
    ORIEL_CO_CHECK(co_await exchange_places(topology_.paths.wanted_of(rank()), false));
  }

  const topo::LsaTeams& teams = topology_.teams;
  ORIEL_CO_CHECK(check_team_sizes(teams, topology_.infos));
  for (const auto& members : teams.members) {
    largest_team_ = std::max(largest_team_, static_cast<int>(members.size()));
  }
  team_facts_.world_rank = rank();
  team_facts_.world_size = size();
  team_facts_.members = teams.members_of(rank());
  team_facts_.index = teams.index[static_cast<std::size_t>(rank())];
  team_facts_.communicator = session_->number() | 1;  // 0 is no communicator's
  teams_ = kernels::GroupingTables(teams.members, rank());
  std::vector<std::vector<int>> singles;
  singles.reserve(static_cast<std::size_t>(size()));
  for (int one = 0; one < size(); ++one) singles.push_back({one});
  singles_ = kernels::GroupingTables(singles, rank());
  std::vector<int> members = team_facts_.members;
  auto team = co_await session_->subgroup(std::move(members));
  if (!team.ok()) co_return std::move(team).error();
  team_.emplace(std::move(team).value());
  co_return Status();
}

Status Communicator::lay_out_scratch(int max_ctas) {
  std::uint64_t all = settings_->scratch_size_bytes;
  const auto team = static_cast<int>(team_facts_.members.size());
  const bool one_team = topology_.teams.members.size() == 1;
  std::uint64_t among_teams = all;  // kernels of GPUs need large transfers between nodes
  if (on_host()) {
    among_teams = all / kHierarchyPart / 4096 * 4096;
    all -= among_teams;
  } else if (one_team) {
    among_teams = kToldBytes;
    const int parts = std::max(kLeastCtas, max_ctas) * std::max(kLeastRanks, team);
    all = std::min(all, static_cast<std::uint64_t>(parts) * kBytesOfCta);
  }
  layout_ = kernels::make_scratch_layout(device_->backend(), team, max_ctas, all);
  ORIEL_TRY(hierarchy_, kernels::make_hierarchy_layout(size(), layout_.total_bytes, among_teams));
  layout_.total_bytes += among_teams;
  exchanges_.emplace(device_->backend(), topology_.teams.members, rank());
  exchanges_->lay_out(max_ctas, layout_.total_bytes);
  layout_.total_bytes += exchanges_->scratch_bytes();
  return {};
}

Task<Status> Communicator::agree_on_choices() {
  overrides_.algorithm = name_of_choice(static_cast<std::uint64_t>(settings_->algorithm));
  overrides_.ctas = static_cast<int>(settings_->ctas);
  overrides_.chunk_bytes = static_cast<std::uint32_t>(settings_->chunk_bytes);

  Status local = check_log();
  if (!settings_->table_path.empty()) {
    auto table = kernels::ChoiceTable::read(settings_->table_path);
    if (table.ok()) {
      own_table_ = std::move(table).value();
    } else if (local.ok()) {
      local = std::move(table).error();
    }
  }
  const auto& table = own_table_ ? *own_table_ : kernels::ChoiceTable::built_in();
  const int max_ctas = on_host() ? 1 : most_ctas_of_gpus(topology_.infos, overrides_.ctas);
  if (options_.min_ctas > max_ctas) {
    Log(rank()).info("minCTAs is {}: taken as {}, the most that a collective can use here",
                     options_.min_ctas, max_ctas);
    options_.min_ctas = max_ctas;
  }
  if (local.ok()) local = check_limits(max_ctas, overrides_, device_->backend());
  Status laid_out = lay_out_scratch(max_ctas);
  if (local.ok()) local = std::move(laid_out);
  if (local.ok()) local = kernels::check_choice(table, device_->backend(), layout_);
  if (local.ok() && needs_network()) local = check_network_settings(*settings_);
  slot_bytes_ =
      choose_slot_bytes(*settings_, team_facts_.members, topology_, device_->memory().kind());
  std::vector<boot::AgreedField> fields = {
      {"the table of algorithms (ORIEL_TABLE)", table.hash(), text_of_hash},
      {"the forced algorithm (ORIEL_ALGORITHM)", static_cast<std::uint64_t>(settings_->algorithm),
       text_of_choice},
      {"the forced number of CTAs (ORIEL_CTAS)", static_cast<std::uint64_t>(overrides_.ctas)},
      {"the forced chunk size (ORIEL_CHUNK)", overrides_.chunk_bytes},
      {"the order of additions (ORIEL_DETERMINISTIC)", settings_->deterministic ? 1u : 0u},
      {"the size of the scratch memory (ORIEL_SCRATCH_SIZE)", settings_->scratch_size_bytes},
      {"the largest number of CTAs", static_cast<std::uint64_t>(max_ctas)},
      {"the smallest number of CTAs (minCTAs)", static_cast<std::uint64_t>(options_.min_ctas)},
      {"the size of a slot (ORIEL_BIG_SIZE)", settings_->big_size_bytes, text_of_slot},
  };
  if (needs_network()) {
    for (auto& field : network_fields(*settings_)) fields.push_back(std::move(field));
  }
  co_return co_await session_->world().agree(boot::Operation::table, std::move(local),
                                             std::move(fields));
}

Result<shadow::OwnedShadow> Communicator::copy_groupings() {
  std::vector<std::int32_t> tables = teams_.tables();
  tables.insert(tables.end(), singles_.tables().begin(), singles_.tables().end());
  const auto bytes = std::as_bytes(std::span(tables));
  ORIEL_TRY(auto pool, device_->object_pool(round_up(bytes.size(), 256), 64));
  return shadow::OwnedShadow::make(std::move(pool), bytes);
}

/// What a rank alone can fail to make, behind which all agree.
Task<Status> Communicator::make_scratch(EventLoop& loop, Deadline deadline) {
  Status local;
  const auto attempt = [&](auto result, auto& place) {
    if (!local.ok()) return;
    if (result.ok()) {
      place = std::move(result).value();
    } else {
      local = std::move(result).error();
    }
  };
  attempt(device_->make_notice_board(), notices_);
  const topo::RankInfo& own = topology_.infos[static_cast<std::size_t>(rank())];
  attempt(device_->make_executor({.communicator = session_->number(),
                                  .ctas = layout_.max_ctas,
                                  .sharers = sharers_of(topology_.infos, own)},
                                 graph_order(*settings_, options_)),
          executor_);
  attempt(device_->make_window_sink(team_facts_), sink_);
  attempt(make_network_windows(), network_windows_);
  if (!on_host()) attempt(copy_groupings(), groupings_);
  if (local.ok()) {
    attempt(
        co_await device_->make_scratch(loop, layout_, hierarchy_, exchanges_->channels(), deadline),
        scratch_);
  }
  std::vector<boot::AgreedField> fields;
  co_return co_await session_->world().agree(boot::Operation::control_window, std::move(local),
                                             std::move(fields));
}

Task<Status> Communicator::make_control_window(EventLoop& loop, Deadline deadline) {
  window::WindowManagerOptions options;
  options.world = &session_->world();
  options.team = &*team_;
  options.memory = &device_->memory();
  for (const int member : team_facts_.members) {
    const auto& info = topology_.infos[static_cast<std::size_t>(member)];
    options.members.push_back({info.process, info.device});
  }
  options.descriptor_domains = topo::descriptor_domains(topology_.infos, team_facts_.members);
  options.slot_bytes = slot_bytes_;
  options.key = session_->key(boot::KeyPurpose::fd_exchange);
  options.communicator = session_->number();
  options.sink = sink_.get();
  if (network_windows_ != nullptr) {
    sink_->set_network(*network_windows_);
    options.participants.push_back(network_windows_.get());
  }
  windows_ = std::make_unique<window::WindowManager>(std::move(options));

  std::vector<window::WindowRequest> requests;
  requests.push_back({scratch_, layout_.total_bytes, window::kWindowFlagsKnown});
  auto registered = co_await windows_->register_batch(loop, boot::Operation::control_window,
                                                      std::move(requests), deadline);
  if (!registered.ok()) {
    co_return std::move(registered).error().with_context("registering the scratch memory");
  }
  control_ = registered.value().front();
  begin_exchanges();
  co_return Status();
}

}  // namespace oriel::comm
