// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/communicator_start.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include <fmt/format.h>

#include "oriel/version.hpp"

#include "base/alignment.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/peer_processes.hpp"
#include "comm/communicator/teams_network.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/network/network_places.hpp"
#include "kernels/plan/most_ranks.hpp"
#include "topo/machine/process_machine.hpp"

namespace oriel::comm {
namespace {

/// Returns the name of a forced algorithm; empty for automatic and for an unknown number from
/// another rank.
std::string name_of_choice(std::uint64_t choice) {
  static_assert(static_cast<int>(AlgorithmChoice::automatic) == 0 &&
                static_cast<int>(AlgorithmChoice::eager) == kernels::kAlgorithmCount);
  if (choice == 0 || choice > kernels::kAlgorithmCount) return {};
  return kernels::name_of(static_cast<kernels::Algorithm>(choice - 1));
}

// Divisor: this fraction of a CPU rank's scratch memory is for collectives among LSA teams.
constexpr std::uint64_t kHierarchyPart = 4;
// Size of that part for GPUs of one team, which make no such collectives.
constexpr std::uint64_t kReportBytes = 64 << 10;
// Scratch memory that the packets and rings of one CTA can use per rank. Chunks of the built-in
// table that do not fit are made smaller. Plans of fewer CTAs have more packets per CTA, and fewer
// ranks have larger chunks.
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

// Checks the sizes of all LSA teams. All ranks have the same facts, so they get the same outcome.
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

}  // namespace

std::string title_of(const CommunicatorOptions& options, int rank, int size) {
  const std::string name = options.name.empty() ? "" : fmt::format("\"{}\" ", options.name);
  return fmt::format("{}as rank {} of {}", name, rank, size);
}

GraphOrder graph_order(const Settings& settings, const CommunicatorOptions& options) {
  const bool is_mixed = settings.graph_mixing == GraphMixing::automatic
                            ? options.graph_mixing
                            : settings.graph_mixing == GraphMixing::on;
  if (is_mixed) return GraphOrder::all;
  return options.graph_stream_ordering ? GraphOrder::in_captures : GraphOrder::none;
}

bool wants_copy_engines(const Settings& settings, const CommunicatorOptions& options) {
  if (settings.cta_policy == CtaPolicy::automatic) return options.copy_engines;
  return settings.cta_policy == CtaPolicy::zero;
}

namespace {

/// Returns RankInfo::cta_limit: the smallest limit set by the environment and the communicator's
/// user.
std::uint16_t cta_limit_of(const Settings& settings, int max_ctas) {
  std::int64_t limit = settings.max_ctas;
  if (limit == 0) limit = std::max<std::int64_t>(kDefaultMostCtas, settings.ctas);
  if (max_ctas > 0) limit = std::min<std::int64_t>(limit, max_ctas);
  return static_cast<std::uint16_t>(std::min<std::int64_t>(limit, topo::kCtasMost));
}

/// Returns invalid_usage if the environment forces more CTAs than `max_ctas`, the limit of a
/// collective, or an algorithm that the backend lacks.
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

// Returns the slot size of a team. Teams may have different slot sizes. The ranks of one team
// compute the same size from facts that all ranks know.
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

Task<Status> CommunicatorStart::run(std::unique_ptr<boot::Session> session, StepTimes& times) {
  parts_.session = std::move(session);
  parts_.flight =
      std::make_unique<FlightRecorder>(FlightFacts{.folder = parts_.settings->dump_dir,
                                                   .communicator = parts_.session->number(),
                                                   .name = parts_.options.name,
                                                   .rank = rank(),
                                                   .size = size(),
                                                   .on_host = on_host(parts_)});
  {
    ORIEL_CO_TRY(const auto activity, parts_.session->activate(loop_, deadline_));
    ORIEL_CO_CHECK(co_await agree_on_topology());
    times.end("topology");
    ORIEL_CO_CHECK(co_await agree_on_choices());
    times.end("choices");
    ORIEL_CO_CHECK(co_await make_scratch());
    times.end("scratch memory");
    ORIEL_CO_CHECK(co_await make_control_window());
    times.end("its window");
    ORIEL_CO_CHECK(co_await connect_teams(loop_, parts_, deadline_));
    times.end("network");
    parts_.session->stop_listening();  // every rank has formed its team by now
    // The watch starts before the final agreement, because after the agreement nothing may fail.
    Status watched = failure_.watch_ranks();
    std::vector<boot::AgreedField> none;
    ORIEL_CO_CHECK(co_await parts_.session->world().agree(boot::Operation::join, std::move(watched),
                                                          std::move(none)));
  }
  times.end("monitor");
  times.write(rank(), title_of(parts_.options, rank(), size()));
  log_start();
  co_return Status();
}

void CommunicatorStart::log_start() const {
  if (rank() == 0 && log_enabled(LogLevel::version)) {
    Log(rank()).version("Oriel {} with the interface of NCCL {}.{}.{}", oriel::version(),
                        kNcclVersion / 10'000, kNcclVersion / 100 % 100, kNcclVersion % 100);
  }
  if (log_enabled(LogLevel::info)) {
    if (rank() == 0) Log(rank()).info("{}", parts_.topology.summary());
    const std::string reach = parts_.topology.reach_of(rank());
    if (!reach.empty()) Log(rank()).info("reaches {}", reach);
    if (wants_copy_engines(*parts_.settings, parts_.options) &&
        !parts_.exchanges->uses_copy_engines()) {
      Log(rank()).info(
          "copy engines carry out no collectives: that takes several GPU ranks of one LSA team, "
          "which all ask for NCCL_CTA_POLICY_ZERO, and no ORIEL_ALGORITHM=stream");
    }
  }
  // The first rank of each node writes the file; no rank waits for it.
  const auto on_this_node = [&](const topo::RankInfo& info) {
    return info.node.host == parts_.topology.infos[static_cast<std::size_t>(rank())].node.host;
  };
  const auto& infos = parts_.topology.infos;
  if (std::find_if(infos.begin(), infos.end(), on_this_node) - infos.begin() == rank()) {
    topo::process_machine().dump_once(*parts_.settings);
  }
}

Task<Status> CommunicatorStart::exchange_places(topo::Wanted wanted, bool first) {
  const topo::NodeIdentity node =
      topo::read_node_identity(parts_.settings->host_id, topo::process_machine().sources().files);
  auto mine = parts_.device->rank_info(node, *parts_.settings, wanted);
  // An empty message means that this rank has failed. The agreement after the all-gather carries
  // the reason.
  Bytes message;
  if (mine.ok() && !on_host(parts_)) {
    mine->cta_limit = cta_limit_of(*parts_.settings, parts_.options.max_ctas);
    mine->cta_least = static_cast<std::uint16_t>(parts_.options.min_ctas);  // at most 1024
    mine->keeps_apart = parts_.settings->p2p_disable;
    mine->wants_copy_engines = wants_copy_engines(*parts_.settings, parts_.options);
  }
  if (mine.ok()) message = first ? topo::encode(*mine) : topo::encode_supplement(*mine, wanted);
  auto gathered =
      co_await parts_.session->world().all_gather(boot::Operation::topology, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  Status local = mine.ok() ? Status() : Status(std::move(mine).error());
  if (local.ok()) {
    const int most = kernels::most_ranks(kernels::Backend::cuda);
    auto made = first ? make_topology(gathered.value(), most)
                      : complete_topology(parts_.topology, gathered.value(), most);
    if (made.ok()) {
      parts_.topology = std::move(made).value();
    } else {
      local = std::move(made).error();
    }
  }
  std::vector<boot::AgreedField> fields = {parts_.topology.agreed_field()};
  co_return co_await parts_.session->world().agree(boot::Operation::topology, std::move(local),
                                                   std::move(fields));
}

Task<Status> CommunicatorStart::agree_on_topology() {
  ORIEL_CO_CHECK(co_await exchange_places({}, true));
  // Facts that are slow to find are collected only if the first exchange left the paths open.
  if (parts_.topology.paths.leave_questions()) {
    ORIEL_CO_CHECK(co_await exchange_places(parts_.topology.paths.wanted_of(rank()), false));
  }
  ORIEL_CO_CHECK(check_team_sizes(parts_.topology.teams, parts_.topology.infos));
  co_return co_await form_team();
}

Task<Status> CommunicatorStart::form_team() {
  const topo::LsaTeams& teams = parts_.topology.teams;
  for (const auto& members : teams.members) {
    parts_.largest_team = std::max(parts_.largest_team, static_cast<int>(members.size()));
  }
  TeamFacts& facts = parts_.team_facts;
  facts.world_rank = rank();
  facts.world_size = size();
  facts.members = teams.members_of(rank());
  facts.index = teams.index[static_cast<std::size_t>(rank())];
  facts.on_one_gpu = are_on_one_gpu(parts_.topology.infos, facts.members);
  facts.communicator = parts_.session->number() | 1;  // 0 stands for no communicator
  parts_.teams = kernels::GroupingTables(teams.members, rank());
  std::vector<std::vector<int>> singles;
  singles.reserve(static_cast<std::size_t>(size()));
  for (int one = 0; one < size(); ++one) singles.push_back({one});
  parts_.singles = kernels::GroupingTables(singles, rank());
  std::vector<int> members = facts.members;
  auto team = co_await parts_.session->subgroup(std::move(members));
  if (!team.ok()) co_return std::move(team).error();
  parts_.team.emplace(std::move(team).value());
  co_return Status();
}

Status CommunicatorStart::lay_out_scratch(int max_ctas) {
  std::uint64_t all = parts_.settings->scratch_size_bytes;
  const auto team = static_cast<int>(parts_.team_facts.members.size());
  const bool one_team = parts_.topology.teams.members.size() == 1;
  std::uint64_t among_teams = all;  // kernels of GPUs need large transfers between nodes
  if (on_host(parts_)) {
    among_teams = all / kHierarchyPart / 4096 * 4096;
    all -= among_teams;
  } else if (one_team) {
    among_teams = kReportBytes;
    const int parts = std::max(kLeastCtas, max_ctas) * std::max(kLeastRanks, team);
    all = std::min(all, static_cast<std::uint64_t>(parts) * kBytesOfCta);
  }
  parts_.layout = kernels::make_scratch_layout(parts_.backend, team, max_ctas, all);
  // Where ranks share a GPU no link limits the CTAs that send.
  if (have_own_gpus(parts_.topology.infos)) {
    parts_.layout.own_ctas = kernels::own_ctas_among(team);
  }
  ORIEL_TRY(parts_.hierarchy,
            kernels::make_hierarchy_layout(size(), parts_.layout.total_bytes, among_teams));
  parts_.layout.total_bytes += among_teams;
  parts_.exchanges.emplace(parts_.backend, parts_.topology.teams.members, rank());
  parts_.exchanges->lay_out(max_ctas, parts_.layout.total_bytes,
                            parts_.settings->scratch_size_bytes);
  parts_.layout.total_bytes += parts_.exchanges->scratch_bytes();
  return {};
}

Task<Status> CommunicatorStart::agree_on_choices() {
  parts_.overrides.algorithm =
      name_of_choice(static_cast<std::uint64_t>(parts_.settings->algorithm));
  parts_.overrides.ctas = static_cast<int>(parts_.settings->ctas);
  parts_.overrides.chunk_bytes = static_cast<std::uint32_t>(parts_.settings->chunk_bytes);

  Status local = check_log();
  if (!parts_.settings->table_path.empty()) {
    auto table = kernels::ChoiceTable::read(parts_.settings->table_path);
    if (table.ok()) {
      parts_.own_table = std::move(table).value();
    } else if (local.ok()) {
      local = std::move(table).error();
    }
  }
  const auto& table = table_of(parts_);
  const int max_ctas =
      on_host(parts_) ? 1 : most_ctas_of_gpus(parts_.topology.infos, parts_.overrides.ctas);
  if (parts_.options.min_ctas > max_ctas) {
    Log(rank()).info("minCTAs is {}: taken as {}, the most that a collective can use here",
                     parts_.options.min_ctas, max_ctas);
  }
  parts_.least_ctas = least_ctas_of_gpus(parts_.topology.infos, max_ctas);
  if (local.ok()) local = check_limits(max_ctas, parts_.overrides, parts_.backend);
  Status laid_out = lay_out_scratch(max_ctas);
  if (local.ok()) local = std::move(laid_out);
  if (local.ok()) local = kernels::check_choice(table, parts_.backend, parts_.layout);
  if (local.ok() && needs_network(parts_.topology))
    local = check_network_settings(*parts_.settings);
  parts_.slot_bytes = choose_slot_bytes(*parts_.settings, parts_.team_facts.members,
                                        parts_.topology, parts_.device->memory().kind());
  std::vector<boot::AgreedField> fields = {
      {"the table of algorithms (ORIEL_TABLE)", table.hash(), text_of_hash},
      {"the forced algorithm (ORIEL_ALGORITHM)",
       static_cast<std::uint64_t>(parts_.settings->algorithm), text_of_choice},
      {"the forced number of CTAs (ORIEL_CTAS)", static_cast<std::uint64_t>(parts_.overrides.ctas)},
      {"the forced chunk size (ORIEL_CHUNK)", parts_.overrides.chunk_bytes},
      {"the order of additions (ORIEL_DETERMINISTIC)", parts_.settings->deterministic ? 1u : 0u},
      {"the size of the scratch memory (ORIEL_SCRATCH_SIZE)", parts_.settings->scratch_size_bytes},
      {"the largest number of CTAs", static_cast<std::uint64_t>(max_ctas)},
      {"the size of a slot (ORIEL_BIG_SIZE)", parts_.settings->big_size_bytes, text_of_slot},
  };
  if (needs_network(parts_.topology)) {
    for (auto& field : network_fields(*parts_.settings)) fields.push_back(std::move(field));
  }
  co_return co_await parts_.session->world().agree(boot::Operation::table, std::move(local),
                                                   std::move(fields));
}

Result<shadow::OwnedShadow> CommunicatorStart::copy_groupings() const {
  std::vector<std::int32_t> tables = parts_.teams.tables();
  tables.insert(tables.end(), parts_.singles.tables().begin(), parts_.singles.tables().end());
  const auto bytes = std::as_bytes(std::span(tables));
  ORIEL_TRY(auto pool, parts_.device->object_pool(round_up(bytes.size(), 256), 64));
  return shadow::OwnedShadow::make(std::move(pool), bytes);
}

Task<Status> CommunicatorStart::make_scratch() {
  Status local;
  const auto attempt = [&](auto result, auto& place) {
    if (!local.ok()) return;
    if (result.ok()) {
      place = std::move(result).value();
    } else {
      local = std::move(result).error();
    }
  };
  attempt(parts_.device->make_notice_memory(), parts_.notices);
  const topo::RankInfo& own = parts_.topology.infos[static_cast<std::size_t>(rank())];
  attempt(parts_.device->make_executor({.communicator = parts_.session->number(),
                                        .ctas = parts_.layout.max_ctas,
                                        .sharers = sharers_of(parts_.topology.infos, own)},
                                       graph_order(*parts_.settings, parts_.options),
                                       parts_.flight->is_wanted()),
          parts_.executor);
  attempt(parts_.device->make_window_sink(parts_.team_facts), parts_.sink);
  attempt(make_network_windows(parts_), parts_.network_windows);
  if (!on_host(parts_)) attempt(copy_groupings(), parts_.groupings);
  if (local.ok()) {
    attempt(co_await parts_.device->make_scratch(loop_, parts_.layout, parts_.hierarchy,
                                                 parts_.exchanges->channels(), deadline_),
            parts_.scratch);
  }
  std::vector<boot::AgreedField> fields;
  co_return co_await parts_.session->world().agree(boot::Operation::control_window,
                                                   std::move(local), std::move(fields));
}

Task<Status> CommunicatorStart::make_control_window() {
  window::WindowManagerOptions options;
  options.world = &parts_.session->world();
  options.team = &*parts_.team;
  options.memory = &parts_.device->memory();
  for (const int member : parts_.team_facts.members) {
    const auto& info = parts_.topology.infos[static_cast<std::size_t>(member)];
    options.members.push_back({info.process, info.device});
  }
  options.descriptor_domains =
      topo::descriptor_domains(parts_.topology.infos, parts_.team_facts.members);
  options.slot_bytes = parts_.slot_bytes;
  options.key = parts_.session->key(boot::KeyPurpose::fd_exchange);
  options.communicator = parts_.session->number();
  options.sink = parts_.sink.get();
  if (parts_.network_windows != nullptr) {
    parts_.sink->set_network(*parts_.network_windows);
    options.participants.push_back(parts_.network_windows.get());
  }
  parts_.windows = std::make_unique<window::WindowManager>(std::move(options));

  write_reading_probe(parts_);
  std::vector<window::WindowRequest> requests;
  requests.push_back({parts_.scratch, parts_.layout.total_bytes, window::kWindowFlagsKnown});
  auto registered = co_await parts_.windows->register_batch(loop_, boot::Operation::control_window,
                                                            std::move(requests), deadline_);
  if (!registered.ok()) {
    co_return std::move(registered).error().with_context("registering the scratch memory");
  }
  parts_.control = registered.value().front();
  if (on_host(parts_)) {
    parts_.flight->share_activity(reinterpret_cast<std::uint64_t*>(
        static_cast<std::byte*>(parts_.scratch) + kernels::ScratchLayout::activity));
  }
  find_peer_processes(parts_);
  begin_exchanges(parts_);
  co_return Status();
}

}  // namespace oriel::comm
