// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "device/queue_gpu.hpp"

#include <cstring>
#include <memory>
#include <thread>

#include <cuda_runtime.h>

#include "support/cuda/gpu_runtime.hpp"

namespace oriel::test {
namespace {

namespace q = device::queue;

/// Zeroed memory of one kind, freed when the pool is destroyed.
class Pool {
 public:
  explicit Pool(RingPlace place) : place_(place) {}
  ~Pool() {
    for (void* block : blocks_) place_ == RingPlace::device ? cudaFree(block) : cudaFreeHost(block);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  template <class T>
  T* make(std::size_t count) {
    void* made = nullptr;
    const std::size_t bytes = count * sizeof(T);
    if (place_ == RingPlace::device) {
      must(cudaMalloc(&made, bytes), "cudaMalloc");
      blocks_.push_back(made);
      must(cudaMemset(made, 0, bytes), "cudaMemset");
    } else {
      must(cudaMallocHost(&made, bytes), "cudaMallocHost");
      blocks_.push_back(made);
      std::memset(made, 0, bytes);
    }
    return static_cast<T*>(made);
  }

 private:
  RingPlace place_;
  std::vector<void*> blocks_;
};

template <class T>
void put(T* to, const T& value) {
  must(cudaMemcpy(to, &value, sizeof value, cudaMemcpyDefault), "cudaMemcpy");
}

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { must(cudaEventCreate(&handle), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

/// Queues of one case, and their drains.
class Queues {
 public:
  explicit Queues(const PublishCase& at) : shared_(at.place) {
    for (std::uint32_t i = 0; i < at.queues; ++i) make_queue(at, i);
    views_ = private_.make<q::QueueView>(at.queues);
    must(cudaMemcpy(views_, made_.data(), made_.size() * sizeof(q::QueueView), cudaMemcpyDefault),
         "cudaMemcpy");
    device_drains_ = private_.make<QueueDrain>(at.queues);
    must(cudaMemcpy(device_drains_, drains_.data(), drains_.size() * sizeof(QueueDrain),
                    cudaMemcpyDefault),
         "cudaMemcpy");
    stop_ = pinned_.make<std::uint32_t>(1);
  }

  const q::QueueView* views() const { return views_; }

  void start(RingPlace place) {
    place_ = place;
    if (place == RingPlace::device) {
      DrainJob job;
      job.drains = device_drains_;
      job.stop = stop_;
      job.limit_ns = 30'000'000'000;
      must(launch_drain(job, static_cast<std::uint32_t>(drains_.size()), drain_stream_.handle),
           "launching the drains");
      return;
    }
    for (QueueDrain& drain : drains_) {
      threads_.emplace_back([&drain](const std::stop_token& stop) {
        while (!stop.stop_requested()) drain.step(device::Thread());
        while (drain.step(device::Thread()) != 0) {
        }
      });
    }
  }

  void stop() {
    if (place_ == RingPlace::device) {
      device::Memory::store<device::Order::release>(stop_, 1u);
      must(cudaStreamSynchronize(drain_stream_.handle), "the drains");
      must(cudaMemcpy(drains_.data(), device_drains_, drains_.size() * sizeof(QueueDrain),
                      cudaMemcpyDefault),
           "cudaMemcpy");
    }
    threads_.clear();  // asks them to stop and joins them
  }
  const std::vector<QueueDrain>& drains() const { return drains_; }

 private:
  void make_queue(const PublishCase& at, std::uint32_t number) {
    q::QueueView view;
    QueueDrain drain;
    const auto scope =
        at.place == RingPlace::device ? device::Scope::device : device::Scope::system;
    view.ring = drain.ring = shared_.make<q::Wqebb>(at.depth);
    view.depth = drain.depth = at.depth;
    view.number = drain.number = 0x100 + number;
    view.reader = drain.writer = scope;
    auto* record = shared_.make<std::uint32_t>(2);
    view.doorbell_record = &record[1];
    drain.record = &record[1];
    view.doorbell = shared_.make<std::uint64_t>(1);
    drain.doorbell = view.doorbell;
    drain.completion = shared_.make<q::Completion>(1);
    view.completion = drain.completion;
    put(&drain.completion->tail,
        q::encode_tail({.kind = q::CompletionKind::invalid,
                        .opcode = 0xff,
                        .queue = 0xffffff,
                        .index = static_cast<std::uint16_t>((at.base - 1) & 0xffffu)}));
    view.indexes = private_.make<q::QueueIndexes>(1);
    q::QueueIndexes indexes;
    indexes.begin_at(at.base);
    put(view.indexes, indexes);
    view.marks = private_.make<std::uint64_t>(at.depth);
    drain.consumed = at.base;
    made_.push_back(view);
    drains_.push_back(drain);
  }

  Pool shared_, private_{RingPlace::device}, pinned_{RingPlace::host};
  std::vector<q::QueueView> made_;
  std::vector<QueueDrain> drains_;
  q::QueueView* views_ = nullptr;
  QueueDrain* device_drains_ = nullptr;
  std::uint32_t* stop_ = nullptr;
  RingPlace place_ = RingPlace::device;
  GpuStream drain_stream_;
  std::vector<std::jthread> threads_;
};

}  // namespace

PublishResult run_publish(const PublishCase& at) {
  must(cudaSetDevice(0), "cudaSetDevice");
  must(load_queue_kernels(), "loading the kernels");
  Queues queues(at);
  Pool pool(RingPlace::device);
  const std::uint32_t warps = at.ctas * at.warps;
  PublishJob job;
  job.queues = queues.views();
  job.queue_count = at.queues;
  job.method = at.method;
  job.rounds = at.rounds;
  job.slow_ns = at.slow_ns;
  job.control.timeout_ns = 5'000'000'000;
  job.outcomes = pool.make<std::uint32_t>(warps);
  job.samples = at.samples;
  job.cycles = pool.make<std::uint32_t>(std::size_t{warps} * at.samples + 1);
  GpuStream stream;
  Event begin, end;
  queues.start(at.place);
  must(cudaEventRecord(begin.handle, stream.handle), "cudaEventRecord");
  must(launch_publish(job, at.ctas, at.warps, stream.handle), "launching the publishers");
  must(cudaEventRecord(end.handle, stream.handle), "cudaEventRecord");
  must(cudaStreamSynchronize(stream.handle), "the publishers");
  queues.stop();

  PublishResult result;
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, begin.handle, end.handle), "cudaEventElapsedTime");
  result.seconds = milliseconds / 1e3;
  const std::uint32_t publishers = at.method == PublishMethod::cta ? at.ctas : warps;
  result.published = std::uint64_t{publishers} * 32 * at.rounds;
  for (const QueueDrain& drain : queues.drains()) {
    result.consumed += drain.consumed - at.base;
    result.doorbells += drain.doorbells;
    result.wrong_wqebbs += drain.wrong_wqebbs;
    result.wrong_doorbells += drain.wrong_doorbells;
  }
  std::vector<std::uint32_t> outcomes(warps);
  must(cudaMemcpy(outcomes.data(), job.outcomes, warps * sizeof(std::uint32_t), cudaMemcpyDefault),
       "cudaMemcpy");
  result.done = result.consumed == result.published;
  for (const std::uint32_t outcome : outcomes) result.done = result.done && outcome == 0;
  result.cycles.resize(std::size_t{warps} * at.samples);
  must(cudaMemcpy(result.cycles.data(), job.cycles, result.cycles.size() * sizeof(std::uint32_t),
                  cudaMemcpyDefault),
       "cudaMemcpy");
  return result;
}

}  // namespace oriel::test
