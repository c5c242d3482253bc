// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/failover_queue.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/queue/doorbell_reader.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

constexpr std::size_t kReceivedMost = 16;  // messages taken from the channel in one progress()

/// Returns whether the peer knows the reason of the end better than this end.
bool is_known_by_peer(const QueueRecords& records, const PathStatement& peer, bool paths_work) {
  // The reason lies in one of the peer's requests.
  if (records.refused != Syndrome::none || peer.fatal != Syndrome::none) return true;
  return peer.stage == PathStage::over && peer.refused == Syndrome::none && paths_work;
}

}  // namespace

FailoverQueue::FailoverQueue(Options options)
    : options_(std::move(options)),
      paths_(options_.health),
      agreement_(options_.agreement, static_cast<std::uint32_t>(options_.paths.size())) {}

Result<std::unique_ptr<FailoverQueue>> FailoverQueue::create(Options options) {
  if (options.paths.empty() || options.paths.size() > kPathsMost) {
    return Error(ErrorCode::invalid_argument, fmt::format("a queue with {} paths: it takes 1 to {}",
                                                          options.paths.size(), kPathsMost))
        .with_hint("name fewer interfaces in ORIEL_PATHS, at least one");
  }
  if (options.channel == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a queue with {} paths has no channel to rank {}",
                             options.paths.size(), options.queue.peer))
        .with_hint("set Options::channel");
  }
  std::unique_ptr<FailoverQueue> made(new FailoverQueue(std::move(options)));
  SendQueue::Options queue = made->options_.queue;
  queue.records = &made->records_;
  queue.aliases = made->options_.first_has_aliases ? made->aliases_.data() : nullptr;
  ORIEL_TRY(made->queue_, SendQueue::create(*made->options_.paths.front().nic, queue));
  made->completed_ = queue.base;
  for (std::size_t i = 0; i < made->options_.paths.size(); ++i) {
    ORIEL_CHECK(made->paths_.add(made->options_.paths[i], *made->queue_, made->aliases_[i],
                                 made->options_.clock->now()));
  }
  return made;
}

std::vector<FailoverQueue::End> FailoverQueue::ends() const {
  return paths_.ends();
}

Status FailoverQueue::connect(const std::vector<End>& peer) {
  if (peer.size() != paths_.size()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} paths to rank {}, which has {}", paths_.size(),
                             options_.queue.peer, peer.size()))
        .with_hint("set ORIEL_PATHS so that every rank has the same number of paths");
  }
  ORIEL_CHECK(paths_.connect(peer));
  const End& first = peer.front();
  ORIEL_CHECK(
      queue_->connect({paths_[0].place.wire, first.address, first.queue, agreement_.epoch()}));
  const std::lock_guard lock(mutex_);
  connected_ = true;
  return {};
}

bool FailoverQueue::has_work() const {
  const QueueMemory& memory = queue_->memory();
  const std::uint16_t reported =
      published_end(memory.doorbell, memory.record, queue_->setup().mode, completed_);
  return reported != static_cast<std::uint16_t>(completed_);
}

bool FailoverQueue::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !connected_) return false;
  const TimePoint now = options_.clock->now();
  bool any = listen_to_peer(now);
  // Acts first: the queue in use afterwards is the one to check.
  any = act(now) || any;
  any = poll_queue(now) || any;
  any = paths_.mend_probes(agreement_.peer().probes, now) || any;
  agreement_.set_probes(paths_.probe_epochs());
  any = paths_.poll(now) || any;
  report_usable();
  any = answer_question() || any;
  any = choose(now) || any;
  agreement_.tick(now);
  any = act(now) || any;
  if (ending_.report_at.has_value() && now >= *ending_.report_at) {
    ending_.report_at.reset();
    wake_producers();
    any = true;
  }
  if (const std::optional<PathStatement> statement = agreement_.take_statement(now)) {
    options_.channel->send(encode_statement(*statement));
    any = true;
  }
  return any;
}

bool FailoverQueue::listen_to_peer(TimePoint now) {
  Bytes message;
  std::size_t last_received = 0;
  for (; last_received < kReceivedMost && options_.channel->receive(message); ++last_received) {
    const Result<PathStatement> statement = decode_statement(message);
    if (!statement.ok()) {
      agreement_.end(statement.error().message());
      continue;
    }
    agreement_.receive(*statement, now);
  }
  return last_received != 0;
}

bool FailoverQueue::poll_queue(TimePoint now) {
  if (!agreement_.has_queue()) return false;
  FailoverPath& path = paths_[agreement_.path()];
  const Result<QueueReport> report = path.place.nic->report(path.queue);
  if (!report.ok()) {
    path.health.give_up(now);
    return true;
  }
  process_report(path, *report, now);
  return false;
}

void FailoverQueue::process_report(FailoverPath& path, const QueueReport& report, TimePoint now) {
  if (report.completed != completed_ || report.last_received > last_received_) {
    completed_ = report.completed;
    last_received_ = std::max(last_received_, report.last_received);
    path.health.progressed(now);
  }
  const bool running = agreement_.stage() == PathStage::running;
  path.health.has_work(running && (has_work() || asked_.has_value()), now);
  if (report.refused != Syndrome::none) return agreement_.end(Syndrome::none, report.refused);
  if (report.state != QueueState::error) return;
  const Syndrome syndrome = report.error.has_value() ? report.error->syndrome : Syndrome::flushed;
  if (!is_path_error(syndrome)) {
    fatal_ = report.error;
    return agreement_.end(syndrome, Syndrome::none);
  }
  path.health.error(syndrome, now);
  if (path.health.is_usable()) {
    // Leaves for a new epoch, which may take the same path once more.
    report_usable();
    agreement_.leave(now);
  }
}

void FailoverQueue::ask() {
  const std::lock_guard lock(mutex_);
  if (!asked_.has_value()) asked_ = options_.clock->now();
}

/// Probes the path in use. A path that stays silent fails, and the next probe uses the next path.
bool FailoverQueue::answer_question() {
  if (!asked_.has_value() || agreement_.stage() != PathStage::running) return false;
  if (answered() >= *asked_) {
    asked_.reset();
    return false;
  }
  PathProbe& probe = paths_[agreement_.path()].probe;
  if (probe.is_open()) return false;
  probe.send();
  return true;
}

void FailoverQueue::report_usable() {
  agreement_.set_usable(paths_.usable(), paths_.causes());
}

bool FailoverQueue::choose(TimePoint now) {
  if (!agreement_.has_queue()) return false;
  const int path = agreement_.path();
  const PathMask usable = paths_.usable();
  if ((usable >> path & 1) == 0) {
    agreement_.leave(now);
    return true;
  }
  const auto better = usable & agreement_.peer_usable_now() & ((1u << path) - 1);
  if (better == 0 || agreement_.stage() != PathStage::running) {
    better_since_.reset();
    return false;
  }
  // Leaves a working path only if the peer can be reached by the channel now. Without the channel
  // neither end would ever send again.
  if (!better_since_.has_value()) better_since_ = now;
  if (agreement_.last_received() <= *better_since_) return false;
  better_since_.reset();
  agreement_.leave(now);
  return true;
}

bool FailoverQueue::act(TimePoint now) {
  bool any = false;
  for (auto actions = agreement_.take_actions(); !actions.empty();
       actions = agreement_.take_actions()) {
    for (const PathAgreement::Action& action : actions) {
      if (act(action).ok()) continue;
      paths_[action.path].health.give_up(now);
      report_usable();
      agreement_.leave(now);
    }
    any = true;
  }
  return any;
}

Status FailoverQueue::act(const PathAgreement::Action& action) {
  using Kind = PathAgreement::Action::Kind;
  if (action.kind == Kind::fail) {
    ending_.report_at = options_.clock->now();
    const bool is_second_hand =
        !fatal_.has_value() && is_known_by_peer(records_, agreement_.peer(), paths_.all_usable());
    if (is_second_hand) *ending_.report_at += options_.second_hand_pause;
    return {};
  }
  FailoverPath& path = paths_[action.path];
  // The agreement may be over because the queue before could not be fenced.
  const bool is_over = agreement_.stage() == PathStage::over;
  if (action.kind != Kind::fence && is_over) return {};
  switch (action.kind) {
    case Kind::fence:
      fence(path);
      return {};
    case Kind::listen:
      return listen(path, action.epoch);
    case Kind::go:
      return path.go();
    case Kind::fail:
      break;
  }
  return {};
}

void FailoverQueue::fence(FailoverPath& path) {
  const Status fenced = path.place.nic->to_error(path.queue);
  // After the fence no NIC uses the records.
  agreement_.set_delivered(records_.delivery.expected());
  completed_ = records_.completed;
  if (!fatal_.has_value() && records_.error.has_value()) fatal_ = records_.error;
  path.health.has_work(false, options_.clock->now());
  if (fenced.ok()) return;
  // Ends the queue: a GPU has not finished the copies that its NIC started. No other NIC may repeat
  // them before it has.
  fatal_ = CompletionRecord{.kind = CompletionRecord::Kind::request_error,
                            .queue = queue_->number(),
                            .index = static_cast<std::uint16_t>(completed_),
                            .syndrome = Syndrome::local_operation,
                            .complaint = Complaint::no_copies};
  agreement_.end(Syndrome::local_operation, Syndrome::none);
}

Status FailoverQueue::listen(FailoverPath& path, std::uint32_t epoch) {
  if (agreement_.peer().delivered < records_.number) {
    agreement_.end(fmt::format("it has accepted {} requests and answered {}",
                               agreement_.peer().delivered, records_.number));
    return {};
  }
  fatal_.reset();
  records_.error.reset();
  return path.listen(epoch);
}

void FailoverQueue::wake_producers() {
  const QueueMemory& memory = queue_->memory();
  const PathStatement& peer = agreement_.peer();
  CompletionRecord record;
  record.kind = CompletionRecord::Kind::request_error;
  record.queue = queue_->number();
  record.index = static_cast<std::uint16_t>(completed_);
  record.syndrome = Syndrome::transport_retry;
  if (records_.refused != Syndrome::none || peer.fatal != Syndrome::none) {
    record.syndrome = Syndrome::flushed;
  }
  if (peer.stage == PathStage::over && peer.refused != Syndrome::none) {
    const bool is_gone = peer.refused == Syndrome::remote_gone;
    record.syndrome = is_gone ? Syndrome::remote_access : peer.refused;
    if (is_gone) record.complaint = Complaint::deregistered;
  }
  ending_.is_at_fault = records_.refused == Syndrome::remote_operation ||
                        records_.refused == Syndrome::remote_gone ||
                        peer.fatal == Syndrome::remote_operation;
  if (fatal_.has_value()) record = *fatal_;
  if (memory.first_error != nullptr) {
    std::atomic_ref<std::uint64_t>(*memory.first_error)
        .store(first_error_word(record), std::memory_order_release);
  }
  CompletionWriter(memory.completions, 1).write(record);
  ending_.failure = Error(ErrorCode::remote,
                          fmt::format("the queue to rank {} over {} has ended: {}",
                                      options_.queue.peer, paths_.names(), agreement_.reason()))
                        .with_scope(Scope::communicator);
}

std::optional<Error> FailoverQueue::failure() const {
  const std::lock_guard lock(mutex_);
  return ending_.failure;
}

bool FailoverQueue::is_at_fault() const {
  const std::lock_guard lock(mutex_);
  return ending_.is_at_fault;
}

TimePoint FailoverQueue::answered() const {
  return std::max(queue_->answered(), paths_.answered());
}

FailoverQueue::Pace FailoverQueue::pace() const {
  const std::lock_guard lock(mutex_);
  const PathStage stage = agreement_.stage();
  return {stage == PathStage::running || stage == PathStage::over, agreement_.path(), has_work()};
}

}  // namespace oriel::net
