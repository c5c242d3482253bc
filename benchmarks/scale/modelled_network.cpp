// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/modelled_network.hpp"

#include <deque>
#include <map>

namespace oriel::scale {

class ModelledNetwork::Node final : public boot::Transport {
 public:
  Node(ModelledNetwork& of, int number) : network_(of), number_(number) {}

  Task<Status> send(int peer, Bytes message) override {
    network_.push(number_, peer, false, std::move(message), Duration::zero());
    co_return Status();
  }
  Task<Result<Bytes>> receive(int peer) override {
    auto& messages = inbox_[peer];
    while (messages.empty()) co_await Park{this};
    Bytes message = std::move(messages.front());
    messages.pop_front();
    co_return message;
  }

  void take(int from, bool is_for_handler, Bytes message) {
    if (is_for_handler) return handler(from, std::move(message));
    inbox_[from].push_back(std::move(message));
    if (waiting_) std::exchange(waiting_, nullptr).resume();
  }

  Endpoint endpoint;
  Handler handler;

 private:
  struct Park {
    Node* node;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const noexcept { node->waiting_ = handle; }
    void await_resume() const noexcept {}
  };

  ModelledNetwork& network_;
  int number_;
  std::coroutine_handle<> waiting_ = nullptr;
  std::map<int, std::deque<Bytes>> inbox_;
};

ModelledNetwork::ModelledNetwork(int nodes, Model model) : model_(model) {
  for (int node = 0; node < nodes; ++node) nodes_.push_back(std::make_unique<Node>(*this, node));
}

ModelledNetwork::~ModelledNetwork() = default;

boot::Transport& ModelledNetwork::transport(int node) {
  return *nodes_[static_cast<std::size_t>(node)];
}

void ModelledNetwork::set_handler(int node, Handler handler) {
  nodes_[static_cast<std::size_t>(node)]->handler = std::move(handler);
}

const Endpoint& ModelledNetwork::endpoint(int node) const {
  return nodes_[static_cast<std::size_t>(node)]->endpoint;
}

void ModelledNetwork::post(int from, int to, Bytes message, Duration later) {
  push(from, to, true, std::move(message), later);
}

void ModelledNetwork::push(int from, int to, bool is_for_handler, Bytes message, Duration later) {
  Endpoint& sender = nodes_[static_cast<std::size_t>(from)]->endpoint;
  const Duration arrival = sender.send(model_, message.size()) + later;
  events_.push(
      {arrival, order_++, to, from, is_for_handler, std::make_shared<Bytes>(std::move(message))});
}

void ModelledNetwork::run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.when);
    Node& node = *nodes_[static_cast<std::size_t>(event.to)];
    node.endpoint.receive(model_, event.when);
    node.take(event.from, event.is_for_handler, std::move(*event.message));
  }
}

}  // namespace oriel::scale
