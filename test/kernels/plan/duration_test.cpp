// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/duration.hpp"

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace oriel::test {
namespace {

using kernels::Backend;
using kernels::Collective;
using kernels::DurationFacts;

const std::map<std::string, Collective> kCollectives = {
    {"all_reduce", Collective::all_reduce},
    {"all_gather", Collective::all_gather},
    {"reduce_scatter", Collective::reduce_scatter},
    {"broadcast", Collective::broadcast},
    {"reduce", Collective::reduce},
    {"alltoall", Collective::all_to_all},
    {"gather", Collective::gather},
    {"scatter", Collective::scatter}};

double estimate(const std::string& name, std::uint64_t bytes, const DurationFacts& facts) {
  if (name == "sendrecv") return kernels::transfers_duration_us(bytes, bytes, facts);
  return kernels::duration_us(kCollectives.at(name), bytes, facts);
}

/// Checks that 19 of 20 estimates are within `factor` of the times in a recorded file. The others
/// may have been recorded while the machine was busy.
void check_file(const std::string& file, const std::string& whose, DurationFacts facts,
                double factor) {
  std::ifstream in(std::string(ORIEL_TEST_SOURCE_DIR) + "/docs/performance/" + file);
  const auto document = nlohmann::json::parse(in);
  int compared = 0, outside = 0;
  std::string cases;
  for (const auto& result : document.at("results")) {
    const auto& parameters = result.at("parameters");
    const std::string of = parameters.value("library", parameters.value("contestant", ""));
    if (of != whose) continue;
    facts.ranks = parameters.at("ranks").get<int>();
    const std::string name = result.at("name").get<std::string>();
    const auto bytes = parameters.at("bytes").get<std::uint64_t>();
    const double estimated = estimate(name, bytes, facts);
    const double measured = result.at("median").get<double>();
    ++compared;
    if (estimated < measured * factor && measured < estimated * factor) continue;
    ++outside;
    cases +=
        fmt::format("\n{} of {} B: estimated {} us, measured {}", name, bytes, estimated, measured);
  }
  INFO(file << cases);
  CHECK(compared >= 90);
  CHECK(20 * outside <= compared);
}

TEST_CASE("estimated durations are near those that were measured", "[req:5.16]") {
  // 384 is the middle of the bandwidth class of an H200's links.
  const DurationFacts h200{.backend = Backend::cuda, .team_gb_per_s = 384};
  check_file("collectives-graphs-h200-x4.json", "ours", h200, 2.5);
  check_file("collectives-h200-x2.json", "ours", h200, 2.5);
  check_file("cpu_peers_collectives_2_ranks.json", "oriel_windows", {}, 4);
}

TEST_CASE("estimated durations grow with the bytes, the ranks and the teams", "[req:5.16]") {
  const DurationFacts four{.backend = Backend::cuda, .ranks = 4, .team_gb_per_s = 400};
  DurationFacts eight = four;
  eight.ranks = 8;
  DurationFacts two_teams = eight;
  two_teams.teams = 2;
  for (const auto& [name, collective] : kCollectives) {
    INFO(name);
    double last = 0;
    for (std::uint64_t bytes = 8; bytes <= std::uint64_t{1} << 34; bytes *= 16) {
      const double now = kernels::duration_us(collective, bytes, four);
      CHECK(now > last);
      CHECK(kernels::duration_us(collective, bytes, eight) > now);
      CHECK(kernels::duration_us(collective, bytes, two_teams) >
            kernels::duration_us(collective, bytes, eight));
      last = now;
    }
  }
  CHECK(kernels::transfers_duration_us(1 << 20, 0, four) ==
        kernels::transfers_duration_us(0, 1 << 20, four));
  DurationFacts alone = four;
  alone.ranks = 1;
  CHECK(kernels::duration_us(Collective::all_reduce, 1 << 30, alone) > 1000);
}

}  // namespace
}  // namespace oriel::test
