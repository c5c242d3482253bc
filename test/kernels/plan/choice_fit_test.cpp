// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/settings_table.hpp"
#include "kernels/plan/arguments.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/plan_values.hpp"
#include "support/seed.hpp"

/// Tests that a plan fits the scratch memory, whatever the table and the settings say.
namespace {

using namespace oriel;
using namespace oriel::kernels;

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

/// Returns the bytes that the slots of one source take in a line algorithm. Counts for CTA 0, which
/// has most lines. Its thread t takes the lines t, t + step, t + 2 * step and so on.
std::uint64_t source_bytes_of(const Plan& plan, std::uint64_t lines) {
  const auto threads = static_cast<std::uint64_t>(plan.threads);
  const std::uint64_t step = threads * static_cast<std::uint64_t>(plan.ctas);
  std::uint64_t end = 0;
  for (std::uint64_t line = 0, turn = 0; line < lines; line += step, ++turn) {
    end = (turn + 1) * threads * kLineBytes;
  }
  return end;
}

/// Returns what does not fit in `plan`, or an empty text. Computes it independently of fits().
/// `copies`: the call copies bytes.
std::string misfit(const Plan& plan, Backend backend, const ScratchLayout& layout, DataType type,
                   std::uint64_t count, std::uint64_t trips = 2, bool copies = false) {
  if (plan.ctas < 1 || plan.ctas > layout.max_ctas) return "CTAs";
  if (plan.threads < 1 || plan.threads > 512) return "threads";
  const auto others = static_cast<std::uint64_t>(std::max(layout.ranks - 1, 1));
  if (plan.algorithm == Algorithm::stream) {
    if (plan.chunk_bytes < 128 || plan.chunk_bytes % 128 != 0) return "the chunk";
    if (plan.lead < 1 || plan.lead >= plan.depth) return "lead and depth";
    if (plan.sub_ctas < 1 || plan.sub_ctas > layout.sub_ctas) return "sub-CTAs";
    if (backend == Backend::cuda && plan.threads % (32 * plan.sub_ctas) != 0) return "whole warps";
    const std::uint64_t ring = static_cast<std::uint64_t>(plan.depth) * others *
                               static_cast<std::uint64_t>(plan.chunk_bytes);
    return ring <= layout.ring_bytes / (plan.whole_rings ? 1 : 2) ? "" : "the rings";
  }
  if (layout.ranks < 2) return "an algorithm that needs other ranks";
  const std::uint64_t bytes = count * size_of(type);
  if (plan.algorithm == Algorithm::eager) {
    if (backend != Backend::host) return "eager on GPUs";
    return divide_up(bytes, 56) * 64 * others <= 65536 ? "" : "the eager lines";
  }
  const bool on_gpus = backend == Backend::cuda;
  const bool floats = type >= DataType::f16;
  const bool is_full = copies ? plan.escaped_lines : on_gpus && floats;
  std::uint64_t lines = divide_up(bytes, is_full ? 16 : 8);
  const std::uint64_t slots = plan.escaped_lines ? 2 : 1;  // a line, and its note
  std::uint64_t stages = 1;
  if (plan.algorithm == Algorithm::two_shot) {
    lines = divide_up(lines, static_cast<std::uint64_t>(layout.ranks));
    stages = trips;
  }
  const std::uint64_t line_bytes = source_bytes_of(plan, lines) * slots * stages * others;
  return line_bytes <= layout.line_bytes ? "" : "the lines";
}

template <class Rng>
std::string random_table(Rng& rng) {
  std::string text;
  const char* const algorithms[] = {"one_shot", "two_shot", "stream", "eager"};
  for (const char* backend : {"host", "cuda"}) {
    for (int list = 1 + static_cast<int>(rng() % 2); list > 0; --list) {
      const auto ranks = 1 + rng() % (rng() % 2 == 0 ? 8 : 64);
      for (int line = static_cast<int>(rng() % 4); line >= 0; --line) {
        const std::string size = line == 0 ? "max" : std::to_string(rng() % (16 * kMiB));
        const auto depth = 2 + rng() % 15;
        text +=
            fmt::format("{} {} {} {} {} {} {} {} {}\n", backend, ranks, size,
                        algorithms[rng() % (backend[0] == 'c' ? 3 : 4)], 1 + rng() % 1024,
                        1 + rng() % 512, 128 * (1 + rng() % 8192), depth, 1 + rng() % (depth - 1));
      }
    }
  }
  return text;
}

template <class Rng>
Overrides random_overrides(Rng& rng) {
  const char* const algorithms[] = {"", "", "one_shot", "two_shot", "stream"};
  Overrides overrides;
  overrides.algorithm = algorithms[rng() % 5];
  if (rng() % 3 == 0) overrides.ctas = static_cast<int>(rng() % 2000);
  if (rng() % 3 == 0) overrides.chunk_bytes = static_cast<std::uint32_t>(rng() >> rng() % 32);
  return overrides;
}

}  // namespace

TEST_CASE("plans fit whatever the table, the settings and the scratch memory",
          "[req:1.38][req:1.39]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 rng(seed);
  int refused = 0;
  int streams = 0;
  int in_lines = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = random_table(rng);
    const auto table = rng() % 4 == 0 ? ChoiceTable::built_in() : ChoiceTable::parse(text).value();
    const Overrides overrides = random_overrides(rng);
    const Backend backend = rng() % 2 == 0 ? Backend::host : Backend::cuda;
    const bool on_gpus = backend == Backend::cuda;
    const int ranks = 1 + static_cast<int>(rng() % (on_gpus || rng() % 2 == 0 ? 8 : 64));
    const int ctas = on_gpus ? 1 + static_cast<int>(rng() % 144) : 1;
    const auto layout =
        make_scratch_layout(backend, ranks, ctas, 4096 * (256 + (rng() >> rng() % 32) % 16129));
    const bool promised = check_choice(table, backend, layout).ok();
    for (int call = 0; call < 8; ++call) {
      const auto type = static_cast<DataType>(rng() % kDataTypeCount);
      const std::uint64_t count = 1 + (rng() >> rng() % 32);
      const auto plan = choose_plan(table, overrides, backend, layout, type, count);
      INFO(text << "round " << round << ", " << (on_gpus ? "cuda" : "host") << ", " << ranks
                << " ranks, " << ctas << " CTAs, " << layout.total_bytes << " bytes, chunk "
                << overrides.chunk_bytes << ", count " << count);
      if (!plan.ok()) {
        REQUIRE_FALSE(promised);
        ++refused;
        continue;
      }
      REQUIRE(misfit(plan.value(), backend, layout, type, count) == "");
      REQUIRE(fits(plan.value(), backend, layout, type, count));
      const auto scatter = choose_scatter_plan(table, overrides, backend, layout, type, count);
      REQUIRE((!scatter.ok() || misfit(scatter.value(), backend, layout, type, count, 1) == ""));
      streams += plan.value().algorithm == Algorithm::stream ? 1 : 0;
      const bool is_broadcast = rng() % 2 == 0;
      const auto collective = is_broadcast ? Collective::broadcast : Collective::all_gather;
      const auto lines = choose_lines_plan(collective, table, overrides, backend, layout, count);
      if (!lines) continue;
      REQUIRE(lines->algorithm == (is_broadcast ? Algorithm::two_shot : Algorithm::one_shot));
      Plan as_blocks = *lines;
      as_blocks.algorithm = Algorithm::one_shot;
      const std::uint64_t line = lines->escaped_lines ? 16 : 8;
      const std::uint64_t share =
          is_broadcast ? share_of_broadcast(*lines, ranks, count) * line : count;
      REQUIRE(misfit(as_blocks, backend, layout, DataType::u8, share, 1, true) == "");
      ++in_lines;
    }
  }
  CHECK(streams > kRounds);
  CHECK(in_lines > kRounds);
  CHECK(refused < kRounds);
}

TEST_CASE("GPUs stream long messages with two sub-CTAs, short ones in one chunk", "[req:5.9]") {
  const auto table = ChoiceTable::parse("cuda 2 max stream 32 512 65536 3 2\n").value();
  const auto plan_in = [&](int ctas, std::uint64_t bytes) {
    const auto layout = make_scratch_layout(Backend::cuda, 4, ctas, 24 * kMiB);
    return choose_plan(table, {}, Backend::cuda, layout, DataType::u8, bytes).value();
  };
  const Plan plan = plan_in(32, 64 * kMiB);
  CHECK(plan.sub_ctas == 2);
  const Split split = split_work(plan, Backend::cuda, 4, DataType::u8, 64 * kMiB);
  CHECK(split.part == 64 * kMiB / 4 / 64);
  // Chunks are nearly equal: the last one is short by less than 128 bytes per chunk.
  const std::uint64_t chunk = chunk_of(plan, Backend::cuda, split, DataType::u8);
  const std::uint64_t chunks = divide_up(split.part, chunk);
  CHECK(chunk <= plan.chunk_bytes);
  CHECK(chunks * chunk - split.part < 128 * chunks);

  const Plan brief = plan_in(32, 3 * kMiB);  // a share of 24 KiB for each CTA
  CHECK(brief.sub_ctas == 1);
  CHECK(brief.chunk_bytes >= 3 * kMiB / 4 / 32);
  CHECK(plan_in(128, 64 * kMiB).sub_ctas == 1);
}

TEST_CASE("some CTAs only copy a long own block, where each rank has a GPU of its own",
          "[req:5.9]") {
  const auto table = ChoiceTable::parse("cuda 2 max stream 32 512 65536 3 2\n").value();
  const auto plan_in = [&](Collective collective, int ranks, int ctas, int own_ctas,
                           std::uint64_t block) {
    auto layout = make_scratch_layout(Backend::cuda, ranks, ctas, 24 * kMiB);
    layout.own_ctas = own_ctas;
    const std::uint64_t count = block * static_cast<unsigned>(ranks);
    return choose_copy_plan(collective, table, {}, Backend::cuda, layout, DataType::u8, count)
        .value();
  };
  const auto own_ctas_in = [&](Collective collective, int ranks, int ctas) {
    return plan_in(collective, ranks, ctas, own_ctas_among(ranks), 16 * kMiB).own_ctas;
  };
  const Plan plan = plan_in(Collective::all_gather, 4, 32, own_ctas_among(4), 16 * kMiB);
  CHECK(plan.own_ctas == 3);
  const std::uint64_t part = part_of_sender(plan, DataType::u8, 16 * kMiB);
  CHECK(part * 2 * 29 >= 16 * kMiB);  // two sub-CTAs of each CTA that sends
  CHECK(part * 2 * 28 < 16 * kMiB);
  // All groups have a part if none copies apart, since then too they exchange handshakes.
  CHECK(split_blocks(plan, Backend::cuda, DataType::u8, 16 * kMiB).part == 16 * kMiB / 64);
  CHECK(own_ctas_in(Collective::all_to_all, 2, 32) == 8);
  CHECK(own_ctas_in(Collective::all_to_all, 8, 32) == 2);
  CHECK(own_ctas_in(Collective::all_gather, 2, 24) == 8);
  CHECK(own_ctas_in(Collective::all_gather, 2, 23) == 0);  // too few would send
  CHECK(own_ctas_in(Collective::all_gather, 4, 3) == 0);
  CHECK(own_ctas_in(Collective::broadcast, 2, 32) == 0);
  CHECK(plan_in(Collective::all_gather, 2, 32, 0, 16 * kMiB).own_ctas == 0);
  CHECK(plan_in(Collective::all_gather, 2, 32, 8, 1 * kMiB).own_ctas == 0);
  CHECK(own_ctas_among(1) == 0);
  auto layout = make_scratch_layout(Backend::cuda, 2, 600, 256 * kMiB);
  layout.own_ctas = 8;
  Overrides many;
  many.ctas = 600;
  const auto short_parts = choose_copy_plan(Collective::all_gather, table, many, Backend::cuda,
                                            layout, DataType::u8, 2 * 16 * kMiB);
  CHECK(short_parts.value().ctas == 600);
  CHECK(short_parts.value().own_ctas == 0);
}

TEST_CASE("short blocks go in lines, with all CTAs where the table takes two trips", "[req:5.9]") {
  const auto table =
      ChoiceTable::parse(
          "cuda 4 65536 one_shot 8 128 0 0 0\ncuda 4 max two_shot 16 256 65536 3 2\n")
          .value();
  const auto layout = make_scratch_layout(Backend::cuda, 4, 32, 16 * kMiB);
  const auto plan_of = [&](std::uint64_t block) {
    return choose_lines_plan(Collective::all_gather, table, {}, Backend::cuda, layout, block);
  };
  CHECK(plan_of(8)->ctas == 8);
  CHECK_FALSE(plan_of(8)->escaped_lines);
  CHECK(plan_of(16 << 10)->escaped_lines);
  CHECK(plan_of(64 << 10)->threads == 128);
  CHECK(plan_of(65 << 10)->ctas == 32);
  CHECK(plan_of(65 << 10)->threads == 160);  // 130 lines in each CTA, in whole warps
  CHECK_FALSE(plan_of(4 * kMiB));
  CHECK_FALSE(plan_of(0));
  // Among eight ranks the slots of a CTA have no room for the lines of 512 threads.
  const auto of_eight = make_scratch_layout(Backend::cuda, 8, 32, 16 * kMiB);
  const auto plan =
      choose_lines_plan(Collective::all_gather, table, {}, Backend::cuda, of_eight, 64 << 10);
  REQUIRE(plan);
  CHECK(plan->threads < 512);
}

TEST_CASE("a long reduce-scatter of GPUs has chunks twice as long, in both rings", "[req:5.9]") {
  const auto table = ChoiceTable::parse("cuda 2 max stream 32 512 26112 2 1\n").value();
  const auto layout = make_scratch_layout(Backend::cuda, 4, 32, 24 * kMiB);
  const auto plan_of = [&](auto choose, const Overrides& overrides) {
    return choose(table, overrides, Backend::cuda, layout, DataType::f32, 16 * kMiB).value();
  };
  const Plan sums = plan_of(choose_plan, {});
  const Plan scatter = plan_of(choose_scatter_plan, {});
  CHECK_FALSE(sums.whole_rings);
  CHECK(scatter.whole_rings);
  CHECK(scatter.chunk_bytes == 2 * sums.chunk_bytes);
  CHECK(fits(scatter, Backend::cuda, layout, DataType::f32, 16 * kMiB, 1));
  Overrides shorter;
  shorter.chunk_bytes = 1024;  // an upper limit
  CHECK(plan_of(choose_scatter_plan, shorter).chunk_bytes == 1024);
}

TEST_CASE("a reduce-scatter goes in lines up to twice the bytes of an all-reduce", "[req:5.9]") {
  const auto layout = make_scratch_layout(Backend::cuda, 4, 32, 24 * kMiB);
  const auto& table = ChoiceTable::built_in();
  const auto in_lines = [&](auto choose, std::uint64_t bytes) {
    return choose(table, Overrides{}, Backend::cuda, layout, DataType::f32, bytes / 4)
               .value()
               .algorithm == Algorithm::two_shot;
  };
  CHECK(in_lines(choose_plan, kMiB));
  CHECK_FALSE(in_lines(choose_plan, 2 * kMiB));
  CHECK(in_lines(choose_scatter_plan, 2 * kMiB));
  CHECK_FALSE(in_lines(choose_scatter_plan, 4 * kMiB));
}

TEST_CASE("GPUs with few CTAs read registered inputs of some calls in place", "[req:5.9]") {
  const auto reads = [](Collective collective, std::uint64_t count, int ranks = 4, int ctas = 32,
                        ReduceOp op = ReduceOp::sum, DataType type = DataType::f32) {
    const auto layout = make_scratch_layout(Backend::cuda, ranks, ctas, 24 * kMiB);
    return reads_inputs(Backend::cuda, layout, {collective, type, op, count, 0}, false);
  };
  CHECK(reads(Collective::reduce_scatter, 64 * kMiB));
  CHECK_FALSE(reads(Collective::reduce_scatter, 64 * kMiB, 4, 128));
  CHECK(reads(Collective::reduce_scatter, kMiB, 4, 128));
  CHECK_FALSE(reads(Collective::reduce_scatter, 4 * kMiB, 4, 128));
  CHECK_FALSE(reads(Collective::all_reduce, kMiB, 4, 128));
  CHECK_FALSE(reads(Collective::reduce, kMiB, 4, 128));
  CHECK_FALSE(reads(Collective::reduce_scatter, kMiB + 1));  // blocks not aligned to 16 bytes
  CHECK(reads(Collective::all_reduce, 2 * kMiB));
  CHECK_FALSE(reads(Collective::all_reduce, 4 * kMiB));
  CHECK(reads(Collective::reduce, 2 * kMiB));
  CHECK_FALSE(reads(Collective::reduce, 4 * kMiB));
  CHECK(reads(Collective::reduce, 8 * kMiB));  // the root owns no share
  CHECK_FALSE(reads(Collective::reduce, 64 * kMiB, 2));
  CHECK_FALSE(reads(Collective::all_gather, kMiB));
  CHECK_FALSE(reads(Collective::all_reduce, kMiB, 4, 32, ReduceOp::premul_sum));
  CHECK(reads(Collective::all_reduce, kMiB, 4, 32, ReduceOp::avg));
  CHECK_FALSE(reads(Collective::all_reduce, kMiB, 3, 32, ReduceOp::avg));
  CHECK_FALSE(reads(Collective::all_reduce, kMiB, 4, 32, ReduceOp::avg, DataType::i32));
  const auto on_cpus = make_scratch_layout(Backend::host, 4, 1, 4 * kMiB);
  CHECK_FALSE(reads_inputs(Backend::host, on_cpus, {Collective::all_reduce, DataType::f32}, false));
}

TEST_CASE("ranks that share a GPU read registered inputs of any length in place",
          "[req:5.9][req:5.23]") {
  const auto layout = make_scratch_layout(Backend::cuda, 2, 32, 24 * kMiB);
  const auto reads = [&](Collective collective, std::uint64_t count, ReduceOp op = ReduceOp::sum) {
    return reads_inputs(Backend::cuda, layout, {collective, DataType::f32, op, count, 0}, true);
  };
  CHECK(reads(Collective::all_reduce, 256 * kMiB));
  CHECK(reads(Collective::reduce, 256 * kMiB));
  CHECK(reads(Collective::reduce_scatter, 256 * kMiB));
  CHECK_FALSE(reads(Collective::reduce_scatter, kMiB + 1));  // blocks not aligned to 16 bytes
  CHECK_FALSE(reads(Collective::all_reduce, kMiB, ReduceOp::premul_sum));
}

TEST_CASE("the root of a broadcast, or of a long reduce among GPUs, owns no share") {
  Plan stream;
  const auto owners = [&](Backend backend, Collective collective, int root, int ranks,
                          std::uint64_t bytes = 64 * kMiB) {
    const Owners made = owners_of(stream, backend, collective, root, ranks, bytes);
    return std::pair(made.first, made.count);
  };
  CHECK(owners(Backend::cuda, Collective::reduce, 3, 4) == std::pair(0, 3));
  CHECK(owners(Backend::cuda, Collective::reduce, 3, 4, 32 * kMiB) == std::pair(0, 3));
  CHECK(owners(Backend::cuda, Collective::reduce, 3, 4, kMiB) == std::pair(0, 4));
  CHECK(owners(Backend::cuda, Collective::reduce, 1, 2) == std::pair(0, 2));
  CHECK(owners(Backend::host, Collective::reduce, 3, 4) == std::pair(0, 4));
  CHECK(owners(Backend::host, Collective::broadcast, 1, 2, 8) == std::pair(0, 1));
  CHECK(owners(Backend::cuda, Collective::broadcast, 1, 4, 8) == std::pair(2, 3));
  CHECK(owners(Backend::cuda, Collective::all_reduce, -1, 4) == std::pair(0, 4));
  stream.algorithm = Algorithm::two_shot;
  CHECK(owners(Backend::cuda, Collective::reduce, 3, 4) == std::pair(0, 4));
}

TEST_CASE("if the scratch memory is too small for a deep stream, a plan that fits is chosen",
          "[req:1.39]") {
  struct Case {
    int ranks;
    std::uint64_t scratch;
    std::uint32_t depth;
  };
  for (const Case& c : {Case{4, kMiB, 8}, {8, kMiB, 16}, {8, 4 * kMiB, 16}}) {
    INFO(c.ranks << " ranks, " << c.scratch << " bytes, depth " << c.depth);
    const auto layout = make_scratch_layout(Backend::cuda, c.ranks, 132, c.scratch);
    const std::string text = fmt::format("cuda 2 max stream 8 256 16384 {} 1\n", c.depth);
    const auto table = ChoiceTable::parse(text).value();
    CHECK(check_choice(table, Backend::cuda, layout).ok());
    for (const std::uint64_t bytes : {8 * kMiB, 64 * kMiB}) {
      const auto plan = choose_plan(table, {}, Backend::cuda, layout, DataType::f32, bytes / 4);
      REQUIRE(plan.ok());
      CHECK(misfit(plan.value(), Backend::cuda, layout, DataType::f32, bytes / 4) == "");
    }
  }
}

TEST_CASE("scratch memory that cannot be had is refused at the start", "[req:1.38][req:1.39]") {
  const auto& table = ChoiceTable::built_in();
  const auto layout = make_scratch_layout(Backend::host, 2, 1, 16 * kMiB);
  ScratchLayout small = layout;
  small.ring_bytes = 2 * 2 * 128 - 1;
  const Status status = check_choice(table, Backend::host, small);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().to_string(),
             Catch::Contains("511 bytes") && Catch::Contains("ORIEL_SCRATCH_SIZE"));
  const auto plan = choose_plan(table, {}, Backend::host, small, DataType::f32, kMiB);
  REQUIRE_FALSE(plan.ok());
  CHECK(plan.error().message() == status.error().message());

  const auto other = ChoiceTable::parse("cuda 2 max stream 1 1 1024 2 1\n");
  const Status missing = check_choice(other.value(), Backend::host, layout);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().message() == "the table of algorithms has no line for the backend host");
}

TEST_CASE("a mistake in a table names the line, the value and what is allowed", "[req:1.38]") {
  struct Case {
    const char* line;
    const char* message;
  };
  const Case cases[] = {
      {"host 2 max stream 1 1 65536 -1 2", "depth is \"-1\", but must be 2 to 16"},
      {"host 2 max stream 1 1 65536 1000000 2", "depth is \"1000000\", but must be 2 to 16"},
      {"host 2 max stream 1 1 65536 2147483648 2", "depth is \"2147483648\", but must be 2 to 16"},
      {"host 2 max stream 1 1 65536 1 1", "depth is \"1\", but must be 2 to 16"},
      {"host 2 max stream 1 1 65536 4 4", "lead is \"4\", but must be 1 to 3"},
      {"host 2 max stream 1 1 65536 4 0", "lead is \"0\", but must be 1 to 3"},
      {"host 2 max stream 1 1 0 4 2", "chunk_bytes is \"0\", but must be 128 to 1048576"},
      {"host 2 max stream 1 1 2M 4 2", "chunk_bytes is \"2M\", but must be 128 to 1048576"},
      {"host 2 max stream 1 1 4294967424 4 2",
       "chunk_bytes is \"4294967424\", but must be 128 to 1048576"},
      {"host 2 max stream 1 1 200 4 2", "chunk_bytes is 200, but must be a multiple of 128"},
      {"host 2 max stream 0 1 128 4 2", "ctas is \"0\", but must be 1 to 1024"},
      {"host 2 max stream 1025 1 128 4 2", "ctas is \"1025\", but must be 1 to 1024"},
      {"host 2 max stream 1 513 128 4 2", "threads is \"513\", but must be 1 to 512"},
      {"host 65 max stream 1 1 128 4 2", "ranks is \"65\", but must be 1 to 64"},
      {"host 2 18446744073709551616 stream 1 1 128 4 2",
       "max_bytes is \"18446744073709551616\", but must be 0 to 18446744073709551614"},
      {"host 2 -1 stream 1 1 128 4 2",
       "max_bytes is \"-1\", but must be 0 to 18446744073709551614"},
      {"host 2 64 one_shot 1 1 0 -1 0", "chunk_bytes is \"0\", but must be 128 to 1048576"},
      {"host 2 64 one_shot 1 1 0 0", "it has 8 fields, not 9"},
      {"host 2 64 one_shot 1 1 0 0 0 0", "it has 10 fields, not 9"},
      {"mlx5 2 64 one_shot 1 1 0 0 0", "backend is neither host nor cuda"},
      {"cuda 2 64 one_shot 1 1 0 0 0",
       "it ends the list for cuda among 2 ranks, but its max_bytes is \"64\" and not \"max\""},
  };
  for (const Case& c : cases) {
    const auto table =
        ChoiceTable::parse(fmt::format("# a table\nhost 4 max stream 1 1 128 2 1\n{}\n", c.line));
    INFO(c.line);
    REQUIRE_FALSE(table.ok());
    CHECK(table.error().code() == ErrorCode::invalid_usage);
    CHECK(table.error().message() == fmt::format("line 3 of the table: {}", c.message));
  }
}

TEST_CASE("a table that is no file, or too long for one, is refused", "[req:1.38]") {
  const auto refused = [](const std::string& path) {
    const auto table = ChoiceTable::read(path);
    return table.ok() ? std::string() : table.error().message();
  };
  const auto refused_for = [&](const std::string& path, const std::string& why) {
    const std::string message = refused(path);
    INFO(message);
    return message.starts_with("cannot read the table \"" + path + "\": ") &&
           message.find(why) != std::string::npos;
  };
  CHECK(refused_for("/nonexistent/table", "No such file"));
  CHECK(refused_for("/", "directory"));
  CHECK(refused_for("/dev/zero", "/dev/zero has more than 1048576 bytes"));
  CHECK(ChoiceTable::read("/dev/null").ok());  // check_choice reports that it has no lines

  char folder[] = "/tmp/oriel-table-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string pipe = std::string(folder) + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(ChoiceTable::read(pipe).ok());  // empty, since no process writes into it
  std::filesystem::remove_all(folder);
}

TEST_CASE("all sizes find lines of the same number of ranks", "[req:1.39]") {
  const auto table = ChoiceTable::parse(
      "host 2 64 one_shot 1 1 0 0 0\nhost 2 max stream 1 1 1024 3 2\n"
      "host 4 128 eager 1 1 0 0 0\nhost 4 max stream 1 1 2048 3 2\n"
      "host 16 max stream 1 1 4096 3 2\n");
  REQUIRE(table.ok());
  const auto listed_for = [&](int ranks, std::uint64_t bytes) {
    return table.value().find(Backend::host, ranks, 1, bytes)->ranks;
  };
  for (const std::uint64_t bytes : {1u, 64u, 65u, 128u, 129u, 1u << 30}) {
    INFO(bytes << " bytes");
    CHECK(listed_for(1, bytes) == 2);
    CHECK(listed_for(2, bytes) == 2);
    CHECK(listed_for(3, bytes) == 4);  // on a tie the larger number of ranks
    CHECK(listed_for(4, bytes) == 4);
    CHECK(listed_for(9, bytes) == 4);
    CHECK(listed_for(10, bytes) == 16);
    CHECK(listed_for(64, bytes) == 16);
  }
}

TEST_CASE("the list with the most CTAs that a communicator may use is chosen from a table",
          "[req:1.39][req:5.5]") {
  const auto table = ChoiceTable::parse(
      "cuda 2 64 one_shot 8 32 0 0 0\ncuda 2 max stream 128 32 1024 3 2\n"
      "cuda 2 32 one_shot 8 64 0 0 0\ncuda 2 max stream 32 64 1024 3 2\n"
      "cuda 4 max stream 16 64 1024 3 2\n");
  REQUIRE(table.ok());
  const auto plan_for = [&](int most_ctas, std::uint64_t bytes) {
    return table.value().find(Backend::cuda, 2, most_ctas, bytes)->plan;
  };
  for (const int most : {128, 200}) CHECK(plan_for(most, 64).threads == 32);
  for (const int most : {1, 31, 32, 127}) CHECK(plan_for(most, 32).threads == 64);
  CHECK(plan_for(32, 64).ctas == 32);  // the first list's line for this size has only 8
  CHECK(plan_for(128, 65).ctas == 128);

  const auto open =
      ChoiceTable::parse("cuda 2 max stream 128 32 1024 3 2\ncuda 2 32 one_shot 8 64 0 0 0\n");
  REQUIRE_FALSE(open.ok());
  CHECK(open.error().message().starts_with("line 2 of the table: it ends the list"));
}

TEST_CASE("a handshake message holds every offset in the largest slot", "[req:1.39]") {
  for (const auto& row : settings_table::rows()) {
    if (std::string_view(row.name) != "ORIEL_BIG_SIZE") continue;
    Settings settings;
    CHECK(settings_table::parse(row.kind, std::to_string(kNoOffset + 1), settings));
    CHECK(settings.big_size_bytes == kNoOffset + 1);
    const std::uint64_t next = kNoOffset + 1 + (std::uint64_t{4} << 30);
    CHECK_FALSE(settings_table::parse(row.kind, std::to_string(next), settings));
    return;
  }
  FAIL("there is no ORIEL_BIG_SIZE");
}
