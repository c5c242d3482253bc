// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/own_processor.hpp"

/// Measures plain memcpys of the traffic of a collective, one round per request, as
/// mpi_collectives.c does. All buffers lie in memory that the ranks share, in huge pages where the
/// kernel gives them, as Oriel's windows do. All ranks copy at once and wait for nobody between
/// calls, so short sizes show no latency. The copies move the least that must pass memory:
///
/// | collective                   | copies of each rank                                           |
/// |------------------------------|---------------------------------------------------------------|
/// | all_gather, alltoall         | the blocks that it receives, its own too, to its output       |
/// | scatter, sendrecv            | the block that it receives to its output                      |
/// | broadcast                    | the root's input to its output; the root's is another buffer  |
/// | gather                       | its input to the root's output                                |
/// | all_reduce                   | its share of each rank's input to that rank's output          |
/// | reduce_scatter, reduce       | its share of all inputs, one over the other, in pieces that   |
/// |                              | stay in its cache, to its output or to the root's             |
///
/// memcpys COLLECTIVE DIRECTORY MOST_BYTES RANKS: arguments, requests and answers are those of
/// mpi_collectives.c. This process is rank 0 and forks the other ranks.
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPiece = 16 << 10;
constexpr int kMostRanks = 64;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which old headers lack
constexpr int kSpins = 2000;   // polls before yielding, as in oriel-perf's barrier

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "memcpys: %s\n", what.c_str());
  std::_Exit(1);
}

/// Copies that one rank makes in one call.
struct Copy {
  char* to;
  const char* from;
  std::size_t bytes;
  bool last;  ///< no later copy overwrites these bytes
};

/// State of all ranks, in shared memory.
struct Shared {
  std::atomic<int> arrived;
  std::atomic<int> generation;
  double us[kMostRanks];
  long long wrong[kMostRanks];
};

void* map_shared(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for " + std::to_string(bytes) + " bytes");
  return memory;
}

/// One rank; `arena_` holds an input area and an output area for each rank.
class Rank {
 public:
  Rank(std::string collective, std::size_t area_bytes, int ranks, Shared& shared, char* arena)
      : collective_(std::move(collective)),
        area_bytes_(area_bytes),
        ranks_(ranks),
        shared_(shared),
        arena_(arena) {}

  void serve(int rank, const std::string& directory);

 private:
  float* input(int rank, int set) const { return at(2 * rank, set); }
  float* output(int rank, int set) const { return at(2 * rank + 1, set); }
  float* at(int area, int set) const {
    return reinterpret_cast<float*>(arena_ + static_cast<std::size_t>(area) * area_bytes_ +
                                    static_cast<std::size_t>(set) * stride_);
  }
  std::vector<Copy> copies_of(int set, std::size_t count) const;
  void measure(std::size_t bytes, int calls, int sets, std::uint64_t seed);
  void fill(int sets, std::size_t bytes, std::uint64_t seed);
  void wait_for_all();

  const std::string collective_;
  const std::size_t area_bytes_;
  const int ranks_;
  Shared& shared_;
  char* const arena_;
  int rank_ = 0;
  std::size_t stride_ = 0;
};

void add(std::vector<Copy>& copies, float* to, const float* from, std::size_t count,
         bool last = true) {
  copies.push_back({reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                    count * sizeof(float), last});
}

/// Returns this rank's copies if the larger buffer has `count` elements. Ranks begin with different
/// sources.
std::vector<Copy> Rank::copies_of(int set, std::size_t count) const {
  std::vector<Copy> copies;
  const auto number = [](int rank) { return static_cast<std::size_t>(rank); };
  const std::size_t block = count / number(ranks_);
  const std::size_t own = number(rank_) * block;
  const auto begin = [&](int rank) { return count * number(rank) / number(ranks_); };
  const std::size_t share = begin(rank_), share_count = begin(rank_ + 1) - share;
  float* const to = output(rank_, set);
  const auto copy_pieces = [&](float* target, std::size_t first, std::size_t all) {
    constexpr std::size_t kCount = kPiece / sizeof(float);
    for (std::size_t done = 0; done < all; done += kCount) {
      for (int i = 1; i <= ranks_; ++i) {
        add(copies, target + done, input((rank_ + i) % ranks_, set) + first + done,
            std::min(kCount, all - done), i == ranks_);
      }
    }
  };
  if (collective_ == "broadcast") {
    add(copies, to, input(0, set), count);
  } else if (collective_ == "sendrecv") {
    add(copies, to, input((rank_ + ranks_ - 1) % ranks_, set), count);
  } else if (collective_ == "scatter") {
    add(copies, to, input(0, set) + own, block);
  } else if (collective_ == "gather") {
    add(copies, output(0, set) + own, input(rank_, set), block);
  } else if (collective_ == "reduce_scatter") {
    copy_pieces(to, own, block);
  } else if (collective_ == "reduce") {
    copy_pieces(output(0, set) + share, share, share_count);
  } else {
    for (int i = 1; i <= ranks_; ++i) {
      const int peer = (rank_ + i) % ranks_;
      if (collective_ == "all_reduce") {
        add(copies, output(peer, set) + share, input(peer, set) + share, share_count);
      } else {
        add(copies, to + number(peer) * block,
            input(peer, set) + (collective_ == "alltoall" ? own : 0), block);
      }
    }
  }
  return copies;
}

void Rank::wait_for_all() {
  const int generation = shared_.generation.load();
  if (shared_.arrived.fetch_add(1) + 1 == ranks_) {
    shared_.arrived.store(0);
    shared_.generation.store(generation + 1);
    return;
  }
  for (int spins = 0; shared_.generation.load() == generation; ++spins) {
    if (spins >= kSpins) ::sched_yield();
  }
}

/// Gives each input its own values, and no output any of them.
void Rank::fill(int sets, std::size_t bytes, std::uint64_t seed) {
  for (int set = 0; set < sets; ++set) {
    auto* const words = reinterpret_cast<std::uint32_t*>(input(rank_, set));
    std::uint64_t state = (seed * 64 + static_cast<std::uint64_t>(set)) * kMostRanks +
                          static_cast<std::uint64_t>(rank_);
    for (std::size_t i = 0; i < bytes / sizeof *words; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      words[i] = static_cast<std::uint32_t>(state >> 33);
    }
    std::memset(output(rank_, set), 0xff, bytes);
  }
}

long long count_wrong(const std::vector<Copy>& copies) {
  long long wrong = 0;
  for (const Copy& copy : copies) {
    for (std::size_t i = 0; copy.last && i < copy.bytes; i += sizeof(float)) {
      wrong += std::memcmp(copy.to + i, copy.from + i, sizeof(float)) != 0;
    }
  }
  return wrong;
}

void Rank::measure(std::size_t bytes, int calls, int sets, std::uint64_t seed) {
  fill(sets, bytes, seed);
  std::vector<std::vector<Copy>> all;
  all.reserve(static_cast<std::size_t>(sets));
  for (int set = 0; set < sets; ++set) all.push_back(copies_of(set, bytes / sizeof(float)));
  const auto call = [&all](int set) {
    for (const Copy& copy : all[static_cast<std::size_t>(set)]) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  };
  wait_for_all();
  call(0);
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call(i % sets);
  const std::chrono::duration<double, std::micro> mine = Clock::now() - start;
  wait_for_all();
  shared_.us[rank_] = mine.count() / calls;
  shared_.wrong[rank_] = 0;
  for (const auto& copies : all) shared_.wrong[rank_] += count_wrong(copies);
  wait_for_all();
}

std::FILE* open_in(const std::string& path, const char* mode) {
  std::FILE* const file = std::fopen(path.c_str(), mode);
  if (file == nullptr) fail("cannot open " + path);
  return file;
}

void Rank::serve(int rank, const std::string& directory) {
  rank_ = rank;
  std::FILE* const requests = open_in(directory + "/request." + std::to_string(rank), "r");
  std::FILE* const answer = rank == 0 ? open_in(directory + "/answer", "w") : nullptr;
  std::size_t bytes = 0;
  int calls = 0, sets = 0;
  unsigned long long seed = 0;
  while (std::fscanf(requests, "%zu %d %d %llu", &bytes, &calls, &sets, &seed) == 4) {
    stride_ = (bytes + kPage - 1) / kPage * kPage + kPage;
    if (calls < 1 || sets < 1 || stride_ * static_cast<std::size_t>(sets) > area_bytes_)
      fail("a request that the buffers cannot hold");
    measure(bytes, calls, sets, seed);
    if (answer == nullptr) continue;
    long long wrong = 0;
    for (int one = 0; one < ranks_; ++one) wrong += shared_.wrong[one];
    std::fprintf(answer, "%.4f %lld\n", *std::max_element(shared_.us, shared_.us + ranks_), wrong);
    std::fflush(answer);
  }
}

char* make_arena(std::size_t bytes) {
  char* const arena = static_cast<char*>(map_shared(bytes));
  std::memset(arena, 0, bytes);
  static_cast<void>(::madvise(arena, bytes, kCollapse));  // optional: huge pages
  return arena;
}

/// Maps all pages into this process, so that no page fault is timed.
void touch(const char* arena, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kPage) {
    static_cast<void>(*static_cast<const volatile char*>(arena + i));
  }
}

int run(const std::string& collective, const std::string& directory, std::size_t most, int ranks) {
  // For every size the rotating buffers take at most two of the largest buffers, or 128 MiB.
  const std::size_t area_bytes = 2 * most + (std::size_t{160} << 20);
  auto* const shared = new (map_shared(sizeof(Shared))) Shared{};
  const std::size_t arena_bytes = 2 * static_cast<std::size_t>(ranks) * area_bytes;
  char* const arena = make_arena(arena_bytes);
  Rank self(collective, area_bytes, ranks, *shared, arena);
  int rank = 0;
  for (int one = 1; one < ranks && rank == 0; ++one) {
    const pid_t child = ::fork();
    if (child < 0) fail("cannot start a rank");
    if (child == 0) {
      rank = one;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
  }
  oriel::tools::bind_to_own_processor(rank, ranks);
  touch(arena, arena_bytes);
  self.serve(rank, directory);
  while (rank == 0 && ::wait(nullptr) > 0) {
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 5 ? std::atoi(argv[4]) : 0;
  if (ranks < 1 || ranks > kMostRanks) {
    std::fprintf(stderr, "memcpys COLLECTIVE DIRECTORY MOST_BYTES RANKS, on at most 64 ranks\n");
    return 2;
  }
  return run(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10), ranks);
}
