// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/task.hpp"
#include "boot/link/transport.hpp"
#include "scale/model.hpp"

namespace oriel::scale {

/// Nodes of a network in one thread, with one event per message. A node is a boot::Transport for
/// groups. It may also have a handler for messages outside groups.
class ModelledNetwork {
 public:
  using Handler = std::function<void(int from, Bytes message)>;

  ModelledNetwork(int nodes, Model model);
  ~ModelledNetwork();
  ModelledNetwork(const ModelledNetwork&) = delete;
  ModelledNetwork& operator=(const ModelledNetwork&) = delete;

  boot::Transport& transport(int node);
  void set_handler(int node, Handler handler);
  /// Sends a message to a node's handler, delayed by `later`.
  void post(int from, int to, Bytes message, Duration later = Duration::zero());

  const Model& model() const { return model_; }
  Duration now() const { return now_; }
  /// Returns the node's own time.
  Duration clock(int node) const { return endpoint(node).clock; }
  const Endpoint& endpoint(int node) const;

  /// Runs until no message is in flight.
  void run();
  /// Runs one task per rank to its end. Returns false if a task does not end or fails.
  template <class T>
  bool run(std::vector<Task<T>>& tasks) {
    for (auto& task : tasks) task.start();
    run();
    return std::all_of(tasks.begin(), tasks.end(),
                       [](auto& task) { return task.done() && task.take().ok(); });
  }

 private:
  class Node;
  struct Event {
    Duration when;
    std::uint64_t order;
    int to;
    int from;
    bool is_for_handler;
    std::shared_ptr<Bytes> message;
    bool operator<(const Event& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };

  void push(int from, int to, bool is_for_handler, Bytes message, Duration later);

  Model model_;
  Duration now_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace oriel::scale
