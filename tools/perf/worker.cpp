// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/worker.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "base/try.hpp"
#include "common/own_processor.hpp"
#include "perf/backend.hpp"
#include "perf/buffers.hpp"
#include "perf/collective_call.hpp"
#include "perf/library.hpp"

namespace oriel::perf {
namespace {

using SteadyTime = std::chrono::steady_clock;

double milliseconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyTime::now() - start).count();
}

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal)
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Result<ncclUniqueId> from_hex(const std::string& text) {
  ncclUniqueId id;
  if (text.size() != 2 * sizeof id.internal)
    return Error(ErrorCode::invalid_argument, "the unique id has the wrong length");
  for (std::size_t i = 0; i < sizeof id.internal; ++i) {
    unsigned char byte = 0;
    const char* end = text.data() + 2 * i + 2;
    const auto [rest, status] = std::from_chars(end - 2, end, byte, 16);
    if (status != std::errc{} || rest != end)
      return Error(ErrorCode::invalid_argument, "the unique id is not hexadecimal");
    id.internal[i] = static_cast<char>(byte);
  }
  return id;
}

// One kind and size of call, set by "prepare".
struct Case {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  bool in_place = false;
  int sets = 1;
  int calls = 1;
  int blocks = 1;  // blocks of `count` elements in the larger buffer
  std::size_t block_bytes() const { return count * size_of(type); }
  std::size_t bytes() const { return block_bytes() * static_cast<std::size_t>(blocks); }
};

// State shared by the ranks of one process.
struct Process {
  Library library;
  bool cuda = false;
};

Result<Process> start_process(const Options& options, const Contestant& contestant,
                              const std::vector<WorkerRank>& worker_ranks) {
  if (worker_ranks.size() > 1) {
    // Ranks that share a GPU need a hardware queue for each stream. Lazy loading would deadlock: a
    // kernel's first launch would wait for other ranks' kernels, which wait for that launch.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  }
  Process process;
  // Loads the library first, as in a program linked with it: the library may bring its own CUDA.
  ORIEL_TRY(process.library, Library::open(contestant.library));
  if (options.per_node > 0) {
    // Must happen before the library reads its settings.
    const std::string node =
        fmt::format("node{}", worker_ranks.front().place.rank / options.per_node);
    ::setenv("ORIEL_HOSTID", node.c_str(), 1);
  }
  process.cuda = options.backend == BackendKind::cuda ||
                 (options.backend == BackendKind::automatic && count_cuda_devices() > 0);
  // Keeps the library from using GPUs, even if the machine has some.
  if (!process.cuda) ::setenv("ORIEL_BACKEND", "host", 0);
  return process;
}

class Worker {
 public:
  Worker(const Options& options, const Contestant& contestant, const Process& process,
         const Place& place, const SharedBarrier& barrier)
      : options_(options),
        contestant_(contestant),
        place_(place),
        barrier_(barrier),
        process_(process),
        collective_(library_, options.collective, options.root, place) {}

  Result<Json> start();
  Result<Json> carry_out(const Json& request);
  bool finished() const { return finished_; }

 private:
  Result<Json> init(const std::string& id);
  Status init_communicator(const ncclUniqueId& id);
  Result<Json> allocate(std::size_t bytes);
  Status prepare(const Json& request);
  Status make_op();
  Status drop_op();
  Result<Json> warm(int calls);
  Status fill(std::uint64_t seed, int first, int last);
  Result<Json> time(double jitter_us, std::uint64_t jitter_seed);
  Result<Json> check(std::uint64_t seed, int first, int last);
  Status finish();

  Status call(int set) const;
  // Addresses of a set's input and output.
  std::byte* input(int set) const;
  std::byte* output(int set) const;
  Status check_results(const Pattern& data, int set, CheckReport& report) const;
  Status check_copied_output(const Pattern& data, const std::byte* result,
                             CheckReport& report) const;
  // Returns the pattern of one input block: a seed of its own if the input has a block per rank.
  Pattern pattern_of_input(Pattern pattern, int block) const {
    if (!sends_blocks(options_.collective)) return pattern;
    pattern.seed = pattern.seed * 4096 + static_cast<std::uint64_t>(block);
    return pattern;
  }
  Status watch_communicator() const;
  Pattern pattern(std::uint64_t seed) const {
    // Callers pass seed_of_set(), so that a call that reads the wrong set is noticed.
    return {case_.type, case_.op, place_.ranks, seed};
  }
  static std::uint64_t seed_of_set(std::uint64_t seed, int set) {
    return seed * 64 + static_cast<std::uint64_t>(set);
  }
  Deadline deadline() const { return Deadline::after(options_.timeout); }

  const Options& options_;
  const Contestant& contestant_;
  const Place place_;
  const SharedBarrier& barrier_;
  const Process& process_;
  const Library& library_ = process_.library;
  CollectiveCall collective_;
  std::unique_ptr<Backend> backend_;
  ncclComm_t comm_ = nullptr;
  BufferSets buffers_;
  Case case_;
  ncclRedOp_t op_ = ncclSum;
  bool own_op_ = false;
  bool finished_ = false;
};

Result<Json> Worker::start() {
  ORIEL_CHECK(collective_.check_present());
  if (process_.cuda) {
    ORIEL_TRY(backend_, make_cuda_backend(place_.local_rank));
  } else {
    backend_ = make_host_backend();
    tools::bind_to_own_processor(place_.local_rank, place_.ranks);
  }
  backend_->watch([this] { return watch_communicator(); });
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return Json{{"pid", ::getpid()},
              {"host", host.data()},
              {"backend", process_.cuda ? "cuda" : "host"},
              {"device", backend_->device_name()},
              {"library", library_.path},
              {"version", library_.version}};
}

Result<Json> Worker::carry_out(const Json& request) {
  const std::string what = request.at("do");
  if (what == "unique_id") {
    ncclUniqueId id;
    ORIEL_CHECK(library_.check(library_.get_unique_id(&id), "ncclGetUniqueId"));
    return Json{{"id", to_hex(id)}};
  }
  if (what == "init") return init(request.at("id"));
  if (what == "allocate") return allocate(request.at("bytes"));
  if (what == "warm") return warm(request.at("calls"));
  if (what == "time") return time(request.at("jitter_us"), request.at("jitter_seed"));
  if (what == "check") return check(request.at("seed"), request.at("first"), request.at("last"));
  if (what == "prepare") {
    ORIEL_CHECK(prepare(request));
  } else if (what == "fill") {
    ORIEL_CHECK(fill(request.at("seed"), 0, case_.sets));
  } else if (what == "finish") {
    ORIEL_CHECK(finish());
  } else {
    return Error(ErrorCode::invalid_argument, fmt::format("unknown request '{}'", what));
  }
  return Json::object();
}

Result<Json> Worker::init(const std::string& hex) {
  ORIEL_TRY(const ncclUniqueId id, from_hex(hex));
  const auto start = SteadyTime::now();
  ORIEL_CHECK(init_communicator(id));
  return Json{{"init_ms", milliseconds_since(start)}};
}

Status Worker::init_communicator(const ncclUniqueId& id) {
  if (options_.blocks == 0)
    return library_.check(library_.comm_init_rank(&comm_, place_.ranks, id, place_.rank),
                          "ncclCommInitRank");
  if (!library_.comm_init_rank_config)
    return Error(
        ErrorCode::invalid_usage,
        fmt::format("{} has no ncclCommInitRankConfig, which --blocks needs", library_.path));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = config.maxCTAs = options_.blocks;
  return library_.check(
      library_.comm_init_rank_config(&comm_, place_.ranks, id, place_.rank, &config),
      "ncclCommInitRankConfig");
}

Result<Json> Worker::allocate(std::size_t bytes) {
  const auto start = SteadyTime::now();
  ORIEL_TRY(buffers_,
            BufferSets::create(library_, *backend_, comm_, contestant_.registration, bytes));
  return Json{{"allocate_and_register_ms", milliseconds_since(start)}};
}

Status Worker::prepare(const Json& request) {
  ORIEL_CHECK(drop_op());
  backend_->forget_graphs();
  case_.type = static_cast<DataType>(request.at("type").get<int>());
  case_.op = static_cast<ReduceOp>(request.at("op").get<int>());
  case_.count = request.at("count");
  case_.in_place = request.at("in_place");
  case_.sets = request.at("sets");
  case_.calls = request.at("calls");
  case_.blocks = request.at("blocks");
  buffers_.cut(case_.bytes());
  return make_op();
}

Status Worker::make_op() {
  if (case_.op != ReduceOp::premul_sum) {
    op_ = static_cast<ncclRedOp_t>(case_.op);
    return {};
  }
  if (!library_.red_op_create_pre_mul_sum || !library_.red_op_destroy)
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} has no ncclRedOpCreatePreMulSum", library_.path));
  std::array<std::byte, 8> scalar{};
  with_type(case_.type, [&](auto type) {
    const double value = premul_scalar(type(), place_.rank);
    typename Element<type()>::Storage stored{};
    if constexpr (Element<type()>::kInteger)
      stored = static_cast<typename Element<type()>::Storage>(value);
    else
      stored = Element<type()>::encode(value);
    std::memcpy(scalar.data(), &stored, sizeof stored);
  });
  ORIEL_CHECK(library_.check(library_.red_op_create_pre_mul_sum(
                                 &op_, scalar.data(), static_cast<ncclDataType_t>(case_.type),
                                 ncclScalarHostImmediate, comm_),
                             "ncclRedOpCreatePreMulSum", comm_));
  own_op_ = true;
  return {};
}

Status Worker::drop_op() {
  if (!own_op_) return {};
  own_op_ = false;
  return library_.check(library_.red_op_destroy(op_, comm_), "ncclRedOpDestroy", comm_);
}

// In place, this rank's block of the larger buffer is the smaller buffer.
std::byte* Worker::input(int set) const {
  auto* const receive = static_cast<std::byte*>(buffers_.receive(set));
  if (!case_.in_place) return static_cast<std::byte*>(buffers_.send(set));
  return receives_blocks(options_.collective) ? collective_.own_block(receive, case_.block_bytes())
                                              : receive;
}

std::byte* Worker::output(int set) const {
  auto* const receive = static_cast<std::byte*>(buffers_.receive(set));
  return case_.in_place && sends_blocks(options_.collective)
             ? collective_.own_block(receive, case_.block_bytes())
             : receive;
}

Status Worker::call(int set) const {
  return collective_.make({input(set), output(set), case_.count,
                           static_cast<ncclDataType_t>(case_.type), op_, comm_,
                           backend_->stream()});
}

Status Worker::watch_communicator() const {
  if (comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  ORIEL_CHECK(
      library_.check(library_.comm_get_async_error(comm_, &state), "ncclCommGetAsyncError", comm_));
  if (state == ncclInProgress) return {};
  return library_.check(state, "while waiting for the device", comm_);
}

// Times the warm-up calls; the first call is not timed because it may set things up.
Result<Json> Worker::warm(int calls) {
  ORIEL_CHECK(call(0));
  ORIEL_CHECK(backend_->synchronize(deadline()));
  const auto start = SteadyTime::now();
  for (int i = 0; i < calls; ++i) ORIEL_CHECK(call(i % case_.sets));
  ORIEL_CHECK(backend_->synchronize(deadline()));
  return Json{{"us", milliseconds_since(start) * 1000 / calls}};
}

Status Worker::fill(std::uint64_t seed, int first, int last) {
  const std::uint8_t poison = poison_byte(case_.type);
  for (int set = first; set < last; ++set) {
    const Pattern data = pattern(seed_of_set(seed, set));
    ORIEL_CHECK(backend_->set_bytes(buffers_.receive(set), poison, buffers_.stride()));
    for (int block = 0; block < collective_.input_blocks(case_.blocks); ++block) {
      std::byte* const at = input(set) + static_cast<std::size_t>(block) * case_.block_bytes();
      ORIEL_CHECK(backend_->fill(at, case_.count, pattern_of_input(data, block), place_.rank));
    }
  }
  return {};
}

Result<Json> Worker::time(double jitter_us, std::uint64_t jitter_seed) {
  TimedLoop loop;
  loop.calls = case_.calls;
  loop.graph_launches = options_.graph_launches;
  loop.blocking = options_.blocking_calls;
  loop.jitter_us = jitter_us;
  loop.jitter_seed = key_of(jitter_seed, place_.rank);
  loop.issue = [this](int number) { return call(number % case_.sets); };
  ORIEL_TRY(const double us, backend_->time(loop, barrier_, deadline()));
  return Json{{"us", us}};
}

// Checks outputs. Out of place, checks the results that the timed calls left. In place these calls
// have overwritten their inputs, so each set gets fresh inputs and one more call, with -G in a
// graph.
Result<Json> Worker::check(std::uint64_t seed, int first, int last) {
  if (case_.in_place) {
    ORIEL_CHECK(fill(seed, first, last));
    TimedLoop loop;
    loop.calls = last - first;
    loop.graph_launches = options_.graph_launches;
    loop.issue = [this, first](int number) { return call(first + number); };
    ORIEL_CHECK(backend_->run_once(loop, deadline()));
  }
  CheckReport sum;
  for (int set = first; set < last; ++set) {
    const Pattern data = pattern(seed_of_set(seed, set));
    CheckReport one;
    ORIEL_CHECK(check_results(data, set, one));
    sum.add(one);
  }
  return Json{{"wrong", sum.total()},
              {"wrong_outputs", sum.wrong_outputs},
              {"changed_inputs", sum.changed_inputs},
              {"written_past_end", sum.written_past_end},
              {"first_wrong", sum.first_wrong},
              {"digest", sum.digest}};
}

Status Worker::check_copied_output(const Pattern& data, const std::byte* result,
                                   CheckReport& report) const {
  const int blocks = receives_blocks(options_.collective) ? case_.blocks : 1;
  for (int block = 0; block < blocks; ++block) {
    CheckReport one;
    const std::byte* const at = result + static_cast<std::size_t>(block) * case_.block_bytes();
    ORIEL_CHECK(backend_->check_input(at, case_.count, data, collective_.source_of(block), one));
    report.wrong_outputs += one.changed_inputs;
  }
  return {};
}

Status Worker::check_results(const Pattern& data, int set, CheckReport& report) const {
  const Pattern own =
      pattern_of_input(data, place_.rank);  // pattern of the block sent to this rank
  std::size_t written = 0;
  if (collective_.has_output()) {
    written = receives_blocks(options_.collective) ? case_.bytes() : case_.block_bytes();
    if (reduces(options_.collective)) {
      ORIEL_CHECK(backend_->check_output(output(set), case_.count, own, report));
    } else {
      ORIEL_CHECK(check_copied_output(own, output(set), report));
    }
    // In other reductions ranks have different results or none, so digests cannot be compared.
    // Copied outputs have no digest.
    if (options_.collective != Collective::all_reduce) report.digest = 0;
  }
  if (case_.in_place) written = case_.bytes();
  const auto* const area = static_cast<const std::byte*>(buffers_.receive(set));
  ORIEL_CHECK(backend_->check_bytes(area + written, poison_byte(case_.type),
                                    buffers_.stride() - written, report));
  if (case_.in_place && collective_.has_output()) return {};
  for (int block = 0; block < collective_.input_blocks(case_.blocks); ++block) {
    const std::byte* const at = input(set) + static_cast<std::size_t>(block) * case_.block_bytes();
    ORIEL_CHECK(
        backend_->check_input(at, case_.count, pattern_of_input(data, block), place_.rank, report));
  }
  return {};
}

Status Worker::finish() {
  ORIEL_CHECK(drop_op());
  backend_->forget_graphs();
  ORIEL_CHECK(buffers_.release(library_, comm_));
  if (comm_ != nullptr) {
    ORIEL_CHECK(library_.check(library_.comm_destroy(comm_), "ncclCommDestroy"));
    comm_ = nullptr;
  }
  finished_ = true;
  return {};
}

// Serves one rank's requests; returns 0 after "finish", 1 after an error.
int run_worker(const Options& options, const Contestant& contestant, const Result<Process>& process,
               const WorkerRank& worker_rank, const SharedBarrier& barrier) {
  std::unique_ptr<Worker> owner;
  if (process)
    owner = std::make_unique<Worker>(options, contestant, *process, worker_rank.place, barrier);
  Result<Json> answer = owner ? owner->start() : Result<Json>(process.error());
  for (;;) {
    const Json message = answer ? *answer : Json{{"error", answer.error().to_string()}};
    const Status sent = worker_rank.coordinator.send(message, Deadline::after(options.timeout));
    if (owner && owner->finished()) return 0;
    if (!sent || !answer) break;
    // Waits without a deadline, because the coordinator may be busy with the other set of ranks. If
    // the coordinator ends, the connection closes and the wait fails.
    const Result<Json> request = worker_rank.coordinator.receive(Deadline::never());
    if (!request) break;
    try {
      answer = owner->carry_out(*request);
    } catch (const Json::exception& problem) {
      answer = Error(ErrorCode::remote, fmt::format("a malformed request: {}", problem.what()));
    }
  }
  // Leaks the worker: freeing its memory waits for the device, which may never finish after an
  // error.
  static_cast<void>(owner.release());
  return 1;
}

}  // namespace

int run_workers(const Options& options, const Contestant& contestant,
                const std::vector<WorkerRank>& worker_ranks, const SharedBarrier& barrier) {
  const Result<Process> process = start_process(options, contestant, worker_ranks);
  std::atomic<int> failed{0};
  const auto run = [&](const WorkerRank& worker_rank) {
    if (run_worker(options, contestant, process, worker_rank, barrier) != 0) failed = 1;
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < worker_ranks.size(); ++i)
    others.emplace_back(run, std::cref(worker_ranks[i]));
  run(worker_ranks.front());
  for (std::thread& one : others) one.join();
  return failed;
}

}  // namespace oriel::perf
