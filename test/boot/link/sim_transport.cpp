// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/sim_transport.hpp"

#include <algorithm>
#include <utility>

#include "boot/link/frame.hpp"
#include "boot/session/rendezvous.hpp"

namespace oriel::boot {

class SimNetwork::Rank final : public Transport {
 public:
  Rank(SimNetwork& network, int rank, int size)
      : network_(&network), rank_(rank), liveness_(rank, size) {
    for (const int peer : link_neighbours(rank, size)) links_[peer];
  }

  Task<Status> send(int peer, Bytes message) override {
    if (reach_step()) co_await std::suspend_always();
    if (liveness_.failure()) co_return *liveness_.failure();
    ++messages_;
    network_->post(rank_, peer, encode_frame(FrameKind::message, message));
    co_return Status();
  }

  Task<Result<Bytes>> receive(int peer) override {
    if (reach_step()) co_await std::suspend_always();
    for (;;) {
      if (liveness_.failure()) co_return *liveness_.failure();
      auto& inbox = inboxes_[peer];
      if (!inbox.empty()) {
        Bytes message = std::move(inbox.front());
        inbox.pop_front();
        co_return message;
      }
      if (network_->clock_.now() >= network_->deadline_) {
        Error late = Error(ErrorCode::timeout, "no message from rank " + std::to_string(peer))
                         .with_origin(peer);
        give_up(late);
        co_return late;
      }
      co_await Park{this};
    }
  }

  void give_up(const Error& reason) override {
    liveness_.aborted(rank_, reason);
    spread();
  }

  void deliver(int from, const Bytes& bytes) {
    std::vector<Frame> frames;
    const Status fed = readers_[from].feed(bytes, frames);
    for (Frame& frame : frames) {
      if (frame.kind == FrameKind::message) {
        inboxes_[from].push_back(std::move(frame.payload));
      } else if (fed.ok()) {
        static_cast<void>(liveness_.receive(frame));
      }
    }
    spread();
    wake();
  }

  void see_end_of_file(int peer) {
    liveness_.died(peer, "its connection has closed");
    spread();
    wake();
  }

  void wake() {
    if (waiting_ && !faulty_) std::exchange(waiting_, nullptr).resume();
  }
  bool waiting() const { return waiting_ && !faulty_; }

  int fault_step_ = -1;
  bool silent_ = false;
  bool faulty_ = false;
  int messages_ = 0;

 private:
  struct Park {
    Rank* rank;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) noexcept { rank->waiting_ = handle; }
    void await_resume() const noexcept {}
  };

  bool reach_step() {
    if (step_++ != fault_step_) return false;
    faulty_ = true;
    if (!silent_) network_->post_end_of_file(rank_);
    return true;
  }

  void spread() {
    if (faulty_) return;
    liveness_.spread(links_, [this](int peer, SimLink& link) {
      for (Bytes& frame : std::exchange(link.queue, {})) {
        network_->post(rank_, peer, std::move(frame));
      }
    });
  }

  /// The interface of a link that Liveness::spread() needs.
  struct SimLink {
    std::vector<Bytes> queue;
    void enqueue(Bytes frame) { queue.push_back(std::move(frame)); }
    std::size_t queued_bytes() const { return queue.size(); }
  };

  SimNetwork* network_;
  int rank_;
  int step_ = 0;
  Liveness liveness_;
  std::map<int, SimLink> links_;
  std::map<int, FrameReader> readers_;
  std::map<int, std::deque<Bytes>> inboxes_;
  std::coroutine_handle<> waiting_;
};

SimNetwork::SimNetwork(int size, SimModel model, std::uint64_t seed)
    : model_(model), deadline_(clock_.now() + model.deadline), random_(seed) {
  for (int rank = 0; rank < size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank, size));
  }
}

SimNetwork::~SimNetwork() = default;

Transport& SimNetwork::transport(int rank) {
  return *ranks_[static_cast<std::size_t>(rank)];
}

void SimNetwork::kill_at(int rank, int step) {
  ranks_[static_cast<std::size_t>(rank)]->fault_step_ = step;
}

void SimNetwork::stop_at(int rank, int step) {
  kill_at(rank, step);
  ranks_[static_cast<std::size_t>(rank)]->silent_ = true;
}

bool SimNetwork::reached_fault(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)]->faulty_;
}

int SimNetwork::messages_sent(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)]->messages_;
}

void SimNetwork::post(int from, int to, Bytes frame) {
  Duration extra{};
  if (model_.jitter.count() > 0) {
    extra =
        Duration(std::uniform_int_distribution<std::int64_t>(0, model_.jitter.count())(random_));
  }
  TimePoint& last = last_delivery_[{from, to}];
  last = std::max(last, clock_.now() + model_.latency + extra);
  if (next_order_++ >= kFramesMost) return;
  events_.push(Event{last, next_order_, to, from, std::move(frame)});
}

// Posts an empty frame as the end of the stream, behind all frames sent before.
void SimNetwork::post_end_of_file(int dead) {
  for (const int peer : link_neighbours(dead, static_cast<int>(ranks_.size()))) {
    post(dead, peer, Bytes());
  }
}

bool SimNetwork::deliver_next() {
  if (events_.empty()) {
    // No event is left: any rank that still waits would wait until the deadline.
    const auto waiting = std::find_if(ranks_.begin(), ranks_.end(),
                                      [](const auto& rank) { return rank->waiting(); });
    if (waiting == ranks_.end()) return false;
    clock_.advance_to(deadline_);
    (*waiting)->wake();
    return true;
  }
  const Event event = events_.top();
  events_.pop();
  clock_.advance_to(event.when);
  Rank& to = *ranks_[static_cast<std::size_t>(event.to)];
  if (to.faulty_) return true;
  if (event.frame.empty()) {
    to.see_end_of_file(event.from);
  } else {
    to.deliver(event.from, event.frame);
  }
  return true;
}

}  // namespace oriel::boot
