// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/device/executor_cuda.hpp"
#include "kernels/cuda/loaded_kernels.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

/// The executor of a communicator on a driver that logs its calls. This driver identifies kernels
/// by the CUDA runtime's handles for them.
namespace oriel::test {

/// Log of the driver calls in order, and the captures that streams are in.
struct DriverLog {
  std::vector<std::string> calls;
  std::map<CUstream, cuuint64_t> captures;
  std::map<CUstream, std::vector<CUgraphNode>> nodes;
  std::uintptr_t events = 0;
  std::string destroyed;           ///< events, by name
  std::uintptr_t event_nodes = 0;  ///< event nodes made; their names are P, Q, R and so on
  bool refuses_event_nodes = false;
  bool refuses_removal = false;  ///< removal of edges, as CUDA does in graphs that allocate memory
  std::uintptr_t launched = 0;
  std::uintptr_t launches_left = 100;  ///< launches that succeed before one fails
  std::size_t loads = 0;               ///< kernels loaded
  std::uintptr_t queries = 0;
  bool is_busy = false;                       ///< launched work has not ended
  std::vector<std::function<void()>> graphs;  ///< each releases what one graph retains
};
inline DriverLog driver;

inline std::string name_of(const void* object) {
  return std::string(1, static_cast<char>(reinterpret_cast<std::uintptr_t>(object)));
}
inline CUstream stream(char name) {
  return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(name));
}
inline CUgraphNode node(char name) {
  return reinterpret_cast<CUgraphNode>(static_cast<std::uintptr_t>(name));
}

inline CUresult create_event(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>('E' + driver.events++);  // E records the last call, F joins
  return CUDA_SUCCESS;
}
/// All streams that executors create are named `s`.
inline CUresult create_stream(CUstream* made, unsigned) {
  *made = stream('s');
  return CUDA_SUCCESS;
}
inline CUresult destroy_event(CUevent event) {
  driver.destroyed += name_of(event);
  return CUDA_SUCCESS;
}
inline CUresult record(CUevent event, CUstream where) {
  driver.calls.push_back(fmt::format("{} records {}", name_of(where), name_of(event)));
  return CUDA_SUCCESS;
}
/// Logs a copy; addresses and sizes are plain numbers. A copy of no bytes fails.
inline CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream where) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  driver.calls.push_back(
      fmt::format("{} copies {} from {} to {}", name_of(where), bytes, from, to));
  return CUDA_SUCCESS;
}
inline CUresult wait(CUstream where, CUevent event, unsigned) {
  driver.calls.push_back(fmt::format("{} waits {}", name_of(where), name_of(event)));
  return CUDA_SUCCESS;
}
inline CUresult stream_id(CUstream where, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(where);
  return CUDA_SUCCESS;
}
inline CUresult query_event(CUevent) {
  ++driver.queries;
  return driver.is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
inline CUresult create_user_object(CUuserObject* object, void* held, CUhostFn drop, unsigned,
                                   unsigned) {
  driver.graphs.emplace_back([held, drop] { drop(held); });
  *object = reinterpret_cast<CUuserObject>(driver.graphs.size());
  return CUDA_SUCCESS;
}
inline CUresult retain_user_object(CUgraph graph, CUuserObject, unsigned, unsigned flags) {
  const bool is_moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
  driver.calls.push_back(fmt::format("graph {} holds", is_moved ? name_of(graph) : "?"));
  return CUDA_SUCCESS;
}
inline CUresult capture_info(CUstream where, CUstreamCaptureStatus* status, cuuint64_t* id,
                             CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData**,
                             std::size_t* count) {
  const auto found = driver.captures.find(where);
  *status = found == driver.captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (found != driver.captures.end() && id != nullptr) *id = found->second;
  // Capture 7 makes graph G, capture 8 graph H.
  if (graph != nullptr && id != nullptr) *graph = reinterpret_cast<CUgraph>('G' + *id - 7);
  if (nodes != nullptr) *nodes = driver.nodes[where].data();
  if (count != nullptr) *count = driver.nodes[where].size();
  return CUDA_SUCCESS;
}
inline CUresult update_dependencies(CUstream where, CUgraphNode* nodes, const CUgraphEdgeData*,
                                    std::size_t count, unsigned flags) {
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) driver.nodes[where].clear();
  for (std::size_t i = 0; i < count; ++i) {
    driver.calls.push_back(fmt::format("{} follows {}", name_of(where), name_of(nodes[i])));
    driver.nodes[where].push_back(nodes[i]);
  }
  return CUDA_SUCCESS;
}
inline CUresult add_event_node(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind,
                               std::size_t count, CUevent event, const char* what) {
  if (driver.refuses_event_nodes) return CUDA_ERROR_NOT_SUPPORTED;
  *made = node(static_cast<char>('P' + driver.event_nodes++));
  std::string names;
  for (std::size_t i = 0; i < count; ++i) names += name_of(behind[i]);
  driver.calls.push_back(fmt::format("{}: {} {} {} behind {}", name_of(graph), name_of(*made), what,
                                     name_of(event), names));
  return CUDA_SUCCESS;
}
inline CUresult add_wait(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind,
                         std::size_t count, CUevent event) {
  return add_event_node(made, graph, behind, count, event, "waits");
}
inline CUresult add_record(CUgraphNode* made, CUgraph graph, const CUgraphNode* behind,
                           std::size_t count, CUevent event) {
  return add_event_node(made, graph, behind, count, event, "records");
}
inline void note_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                       std::size_t count, const char* what) {
  for (std::size_t i = 0; i < count; ++i) {
    driver.calls.push_back(
        fmt::format("{}: {} {} {}", name_of(graph), name_of(to[i]), what, name_of(from[i])));
  }
}
inline CUresult add_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                          const CUgraphEdgeData*, std::size_t count) {
  note_edges(graph, from, to, count, "follows");
  return CUDA_SUCCESS;
}
inline CUresult remove_edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                             const CUgraphEdgeData*, std::size_t count) {
  if (driver.refuses_removal) return CUDA_ERROR_INVALID_VALUE;
  note_edges(graph, from, to, count, "leaves");
  return CUDA_SUCCESS;
}

inline bool is_exchange(CUfunction kernel) {
  for (std::size_t form = 0; form < kernels::kExchangeForms; ++form) {
    const void* const known =
        kernels::detail::exchange_kernel_for(static_cast<kernels::ExchangeForm>(form));
    if (reinterpret_cast<const void*>(kernel) == known) return true;
  }
  return false;
}
/// A captured launch becomes the node that its stream follows.
inline CUresult launch_kernel(const CUlaunchConfig* config, CUfunction kernel, void**, void**) {
  if (driver.launches_left == 0) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  --driver.launches_left;
  CUstream const where = config->hStream;
  const char* const what = is_exchange(kernel) ? "launches" : "reduces";
  driver.calls.push_back(fmt::format("{} {}", name_of(where), what));
  ++driver.launched;
  driver.nodes[where] = {node(static_cast<char>('0' + driver.launched))};
  return CUDA_SUCCESS;
}
inline CUresult get_current(CUcontext* context) {
  *context = nullptr;  // the context of the executors, too
  return CUDA_SUCCESS;
}

inline constexpr kernels::KernelLoader kLoader{
    .load = [](const void*) -> int {
      ++driver.loads;
      return 0;
    },
    .find = [](CUfunction* function, const void* kernel) -> int {
      *function = reinterpret_cast<CUfunction>(const_cast<void*>(kernel));
      return 0;
    }};

/// Replaces the functions of captures and graphs by those that log.
inline void log_captures(CudaTable& table) {
  table.stream_get_capture_info = capture_info;
  table.stream_update_capture_dependencies = update_dependencies;
  table.user_object_create = create_user_object;
  table.graph_retain_user_object = retain_user_object;
  table.graph_add_event_wait_node = add_wait;
  table.graph_add_event_record_node = add_record;
  table.graph_add_dependencies = add_edges;
  table.graph_remove_dependencies = remove_edges;
}

inline CudaTable logging_table() {
  CudaTable table = cuda();
  table.ctx_push_current = [](CUcontext) { return CUDA_SUCCESS; };
  table.ctx_pop_current = [](CUcontext*) { return CUDA_SUCCESS; };
  table.thread_exchange_stream_capture_mode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  table.ctx_get_current = get_current;
  table.launch_kernel_ex = launch_kernel;
  table.stream_create = create_stream;
  table.stream_destroy = [](CUstream) { return CUDA_SUCCESS; };
  table.event_create = create_event;
  table.event_destroy = destroy_event;
  table.event_record = record;
  table.event_query = query_event;
  table.stream_wait_event = wait;
  table.memcpy_async = copy;
  table.stream_get_id = stream_id;
  log_captures(table);
  return table;
}

/// An executor on the logging driver.
class JoinedStreams {
 public:
  explicit JoinedStreams(comm::GraphOrder order = comm::GraphOrder::all)
      : table_(logging_table()), scoped_(table_) {
    driver = {};
    executor_ = make_executor(1, order);
  }
  /// Makes the executor of a communicator. The event of its last call is E for the first executor,
  /// then G, then I.
  std::unique_ptr<comm::Executor> make_executor(std::uint64_t communicator,
                                                comm::GraphOrder order = comm::GraphOrder::all,
                                                bool marks = false) {
    auto made = comm::CudaExecutor::make({nullptr, budget_, kernels_},
                                         {.communicator = communicator, .ctas = 32}, order, marks);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  comm::Executor& executor() { return *executor_; }

  Status check(const std::vector<void*>& streams) { return executor_->check_joined(streams); }
  void run(const std::vector<void*>& streams, std::size_t launches) {
    driver.calls.clear();
    join(streams.front(), streams);
    CHECK(exchange(streams.front(), launches).ok());
    release(streams.front(), streams);
  }
  void join(void* first, const std::vector<void*>& streams) {
    CHECK(executor_->join_streams(first, streams).ok());
  }
  void reduce(void* where) { CHECK(executor_->run({}, {}, where).ok()); }
  Status exchange(void* where, std::size_t launches) {
    comm::ExchangeCall call;
    for (std::size_t i = 0; i < launches; ++i) call.launches.add({});
    call.stream = where;
    return executor_->run_exchange(call);
  }
  /// Runs a launch, then copies of these sizes in bytes, then another launch. With `beside`, the
  /// last copy may run beside the others.
  Status copy(void* where, std::initializer_list<std::uintptr_t> sizes, bool beside = false) {
    comm::ExchangeCall call;
    call.copies_own_block = beside;
    call.launches.add({});
    call.launches.add({});
    call.launches_before_copies = 1;
    for (const std::uintptr_t bytes : sizes) {
      const std::uintptr_t from = 100 * (call.copies.size() + 1);
      call.copies.push_back({reinterpret_cast<const std::byte*>(from),
                             reinterpret_cast<std::byte*>(from + 1), bytes});
    }
    call.stream = where;
    driver.calls.clear();
    return executor_->run_exchange(call);
  }
  void release(void* last, const std::vector<void*>& streams) {
    CHECK(executor_->release_streams(last, streams).ok());
  }
  /// Runs `launches` launches, the last of which fails.
  Status run_in_part(void* where, std::size_t launches) {
    driver.calls.clear();
    driver.launches_left = launches - 1;
    Status done = exchange(where, launches);
    driver.launches_left = 100;
    return done;
  }

 private:
  CudaTable table_;
  ScopedCudaTable scoped_;
  kernels::ScopedKernelLoader loader_{kLoader};
  comm::CtaBudget budget_{132};
  kernels::LoadedKernels kernels_{nullptr};
  std::unique_ptr<comm::Executor> executor_;
};

}  // namespace oriel::test
