// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

#include <fmt/format.h>

#include "base/try.hpp"
#include "perf/buffers.hpp"

namespace oriel::perf {
namespace {

// Target length of a round on CPUs without -n, where one call may take less than a microsecond or a
// tenth of a second. The number of calls stays within the bounds below.
constexpr double kRoundUs = 40'000;
constexpr int kFewestCalls = 3;
constexpr int kMostCalls = 1000;
constexpr int kCallsByDefault = 20;

double slowest(const std::vector<Json>& answers, const char* field) {
  double most = 0;
  for (const Json& answer : answers) most = std::max(most, answer.at(field).get<double>());
  return most;
}

}  // namespace

std::string Session::Plan::text() const {
  return fmt::format("{} B {} {} {}", bytes(), table_name(type), table_name(op),
                     placement == Placement::in_place ? "in place" : "out of place");
}

Session::Session(const Options& options, RankSet ours, std::optional<RankSet> theirs)
    : options_(options), ours_{std::move(ours), {}} {
  if (theirs) theirs_.emplace(Side{std::move(*theirs), {}});
}

std::vector<Session::Side*> Session::sides() {
  std::vector<Side*> list{&ours_};
  if (theirs_) list.push_back(&*theirs_);
  return list;
}

Status Session::run() {
  // Checks the path now rather than after minutes of measuring.
  if (!options_.json_path.empty()) ORIEL_CHECK(check_json_path(options_.json_path));
  Status done = start();
  if (done.ok()) {
    const std::vector<Plan> all = plans();
    const Table table(options_, ours_.ranks.size());
    table.header(info_);
    progress_.emplace(all.size() * static_cast<std::size_t>(options_.rounds));
    done = measure_all(all);
    progress_.reset();
    if (done.ok()) table.footer(results_);
  }
  for (Side* side : sides())
    if (done.ok()) done = side->ranks.finish();
  if (options_.json_path.empty()) return done;
  const std::string error = done.ok() ? "" : done.error().to_string();
  Status written = write_json(options_.json_path, to_json(options_, info_, results_, error));
  return done.ok() ? std::move(written) : std::move(done);
}

Status Session::start() {
  const std::size_t bytes = arena_bytes(plans());
  ORIEL_CHECK(start_side(ours_, options_.ours, bytes));
  if (theirs_) ORIEL_CHECK(start_side(*theirs_, *options_.against, bytes));
  info_.ours = ours_.info;
  if (theirs_) info_.theirs = theirs_->info;
  if (info_.backend == "host" && options_.graph_launches > 0)
    return Error(ErrorCode::invalid_argument, "-G: there are no CUDA graphs on CPUs");
  return {};
}

Status Session::start_side(Side& side, const Contestant& contestant, std::size_t bytes) {
  ORIEL_TRY(const auto hellos, side.ranks.receive_hellos());
  info_.backend = hellos.front().at("backend");
  side.info.library = hellos.front().at("library");
  side.info.version = hellos.front().at("version");
  side.info.registration = name_of(contestant.registration);
  for (const Json& one : hellos)
    side.info.ranks.push_back({one.at("pid"), one.at("host"), one.at("device")});
  ORIEL_TRY(const Json id, side.ranks.ask_one(0, {{"do", "unique_id"}}, "making the unique id"));
  ORIEL_TRY(const auto joined,
            side.ranks.ask({{"do", "init"}, {"id", id.at("id")}}, "starting the communicator"));
  side.info.init_ms = slowest(joined, "init_ms");
  ORIEL_TRY(const auto allocated, side.ranks.ask({{"do", "allocate"}, {"bytes", bytes}},
                                                 "allocating and registering buffers"));
  side.info.allocate_ms = slowest(allocated, "allocate_and_register_ms");
  return {};
}

std::vector<Session::Plan> Session::plans() const {
  std::vector<Plan> all;
  const int blocks = blocks_of(options_.collective, ours_.ranks.size());
  for (const DataType type : options_.types)
    for (const ReduceOp op : options_.ops) {
      std::vector<std::size_t> counts = options_.counts;
      for (const std::size_t bytes : options_.sizes) {
        // A block has at least one element, or nothing would be measured.
        const std::size_t count = bytes / size_of(type) / static_cast<std::size_t>(blocks);
        counts.push_back(blocks > 1 ? std::max<std::size_t>(count, 1) : count);
      }
      for (const std::size_t count : counts)
        for (const Placement placement : options_.placements)
          all.push_back({type, op, count, placement, 1, 1, blocks});
    }
  return all;
}

std::size_t Session::arena_bytes(const std::vector<Plan>& all) const {
  std::size_t most = set_stride(0);
  for (const Plan& plan : all)
    most = std::max(most, set_stride(plan.bytes()) *
                              static_cast<std::size_t>(rotation(options_, plan.bytes())));
  return most;
}

Status Session::measure_all(const std::vector<Plan>& all) {
  const Table table(options_, ours_.ranks.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ORIEL_CHECK(measure(all[i]));
    // The placements of one case follow each other, so the last one completes its row.
    if ((i + 1) % options_.placements.size() != 0) continue;
    progress_->clear();
    table.row(results_.back());
  }
  return {};
}

CaseResult& Session::case_of(const Plan& plan) {
  if (plan.placement == options_.placements.front()) {
    CaseResult fresh;
    fresh.type = plan.type;
    fresh.op = plan.op;
    fresh.count = plan.count;
    fresh.blocks = plan.blocks;
    results_.push_back(std::move(fresh));
  }
  return results_.back();
}

Status Session::measure(Plan plan) {
  ORIEL_CHECK(prepare(plan));
  PlacementResult result;
  if (theirs_) result.theirs.emplace();
  std::vector<double> ratios;
  for (int number = 0; number < options_.rounds; ++number) {
    // The two libraries take turns at going first, so that a drift of the machine favours neither.
    const bool theirs_first = theirs_ && number % 2 == 1;
    if (theirs_first) ORIEL_CHECK(round(*theirs_, plan, number, 0, *result.theirs));
    ORIEL_CHECK(round(ours_, plan, number, 0, result.ours));
    if (theirs_ && !theirs_first) ORIEL_CHECK(round(*theirs_, plan, number, 0, *result.theirs));
    if (theirs_) ratios.push_back(result.ours.us.back() / result.theirs->us.back());
    progress_->step(fmt::format("{}, round {} of {}", plan.text(), number + 1, options_.rounds));
  }
  if (theirs_) result.ratio = Ratio{median(ratios), bootstrap_median(ratios)};
  if (options_.jitter_us > 0) {
    ORIEL_CHECK(round(ours_, plan, options_.rounds, options_.jitter_us, result.ours));
    if (theirs_)
      ORIEL_CHECK(round(*theirs_, plan, options_.rounds, options_.jitter_us, *result.theirs));
  }
  CaseResult& row = case_of(plan);
  row.calls = plan.calls;
  row.sets = plan.sets;
  (plan.placement == Placement::in_place ? row.in_place : row.out_of_place) = std::move(result);
  return {};
}

// Prepares and warms up both libraries. On CPUs without -n, chooses the number of calls by the
// slower library.
Status Session::prepare(Plan& plan) {
  const bool choose = !options_.iterations && info_.backend == "host";
  const int rotation_sets = rotation(options_, plan.bytes());
  plan.calls = options_.iterations.value_or(kCallsByDefault);
  plan.sets = std::min(rotation_sets, plan.calls);
  double us = 0;
  for (Side* side : sides()) {
    ORIEL_CHECK(prepare_side(*side, plan));
    ORIEL_TRY(const double one, warm(*side, plan));
    us = std::max(us, one);
  }
  if (!choose) return {};
  plan.calls = static_cast<int>(
      std::clamp(kRoundUs / std::max(us, 1e-3), double{kFewestCalls}, double{kMostCalls}));
  plan.sets = std::min(rotation_sets, plan.calls);
  for (Side* side : sides()) ORIEL_CHECK(prepare_side(*side, plan));
  return {};
}

Status Session::prepare_side(Side& side, const Plan& plan) {
  const Json request{{"do", "prepare"},
                     {"type", static_cast<int>(plan.type)},
                     {"op", static_cast<int>(plan.op)},
                     {"count", plan.count},
                     {"in_place", plan.placement == Placement::in_place},
                     {"sets", plan.sets},
                     {"blocks", plan.blocks},
                     {"calls", plan.calls}};
  ORIEL_CHECK(side.ranks.ask(request, "preparing " + plan.text()));
  return {};
}

Result<double> Session::warm(Side& side, const Plan& plan) {
  ORIEL_TRY(const auto answers, side.ranks.ask({{"do", "warm"}, {"calls", options_.warmup}},
                                               "warming up " + plan.text()));
  return slowest(answers, "us");
}

Status Session::round(Side& side, const Plan& plan, int number, double jitter_us, Rounds& rounds) {
  const std::uint64_t seed = options_.seed * 1'000'003 + static_cast<std::uint64_t>(number);
  if (options_.check || number == 0)
    ORIEL_CHECK(
        side.ranks.ask({{"do", "fill"}, {"seed", seed}}, "filling the buffers of " + plan.text()));
  ORIEL_TRY(const auto timed,
            side.ranks.ask({{"do", "time"}, {"jitter_us", jitter_us}, {"jitter_seed", seed}},
                           "timing " + plan.text()));
  if (jitter_us > 0)
    rounds.jittered_us = slowest(timed, "us");
  else
    rounds.us.push_back(slowest(timed, "us"));
  return options_.check ? check(side, plan, number, seed, rounds) : Status{};
}

// Checks every element of all buffer sets in the first and the last round, and of one set, in turn,
// in the other rounds.
Status Session::check(Side& side, const Plan& plan, int number, std::uint64_t seed,
                      Rounds& rounds) {
  const bool all = number == 0 || number >= options_.rounds - 1;
  const int first = all ? 0 : number % plan.sets;
  const int last = all ? plan.sets : first + 1;
  ORIEL_TRY(const auto answers,
            side.ranks.ask({{"do", "check"}, {"seed", seed}, {"first", first}, {"last", last}},
                           "checking " + plan.text()));
  rounds.checked = true;
  for (const Json& one : answers) {
    rounds.wrong += one.at("wrong").get<std::uint64_t>();
    rounds.wrong_outputs += one.at("wrong_outputs").get<std::uint64_t>();
    rounds.changed_inputs += one.at("changed_inputs").get<std::uint64_t>();
    rounds.written_past_end += one.at("written_past_end").get<std::uint64_t>();
    rounds.first_wrong = std::min(rounds.first_wrong, one.at("first_wrong").get<std::uint64_t>());
    rounds.same_bits = rounds.same_bits && one.at("digest") == answers.front().at("digest");
  }
  return {};
}

Status Session::serve() {
  ORIEL_CHECK(start());
  std::optional<Plan> current;
  int number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::size_t bytes = 0;
    int calls = 0;
    if (!(words >> bytes >> calls) || calls < 1)
      return Error(ErrorCode::invalid_argument,
                   fmt::format("'{}' is not a line 'BYTES CALLS'", line));
    const int blocks = blocks_of(options_.collective, ours_.ranks.size());
    Plan plan{options_.types.front(),
              options_.ops.front(),
              bytes / size_of(options_.types.front()) / static_cast<std::size_t>(blocks),
              options_.placements.front(),
              calls,
              std::min(calls, rotation(options_, bytes)),
              blocks};
    if (set_stride(bytes) * static_cast<std::size_t>(plan.sets) > arena_bytes(plans()))
      return Error(ErrorCode::invalid_argument, fmt::format("{} bytes are above -e", bytes));
    if (!current || current->count != plan.count || current->calls != plan.calls) {
      ORIEL_CHECK(prepare_side(ours_, plan));
      ORIEL_CHECK(warm(ours_, plan));
      current = plan;
    }
    Rounds rounds;
    ORIEL_CHECK(round(ours_, plan, number++, 0, rounds));
    fmt::print("{:.4f} {}\n", rounds.us.back(), rounds.wrong);
    std::fflush(stdout);
  }
  return ours_.ranks.finish();
}

}  // namespace oriel::perf
