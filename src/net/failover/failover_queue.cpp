// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/failover/failover_queue.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/queue/doorbell_reader.hpp"

namespace oriel::net {

namespace dq = device::queue;

namespace {

constexpr std::size_t kHeardMost = 16;  // of the channel in one progress()

}  // namespace

FailoverQueue::Branch::~Branch() {
  if (owns_queue) static_cast<void>(path.nic->destroy_queue(queue));
  if (fetch_key != 0) static_cast<void>(path.nic->deregister_memory(fetch_key));
}

FailoverQueue::FailoverQueue(Options options)
    : options_(std::move(options)),
      agreement_(options_.agreement, static_cast<std::uint32_t>(options_.paths.size())) {}

FailoverQueue::~FailoverQueue() = default;

Result<std::unique_ptr<FailoverQueue>> FailoverQueue::create(Options options) {
  if (options.paths.empty() || options.paths.size() > kPathsMost) {
    return Error(ErrorCode::invalid_argument, fmt::format("a queue with {} paths: it takes 1 to {}",
                                                          options.paths.size(), kPathsMost));
  }
  if (options.channel == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 "a queue with several paths needs a channel to its peer");
  }
  std::unique_ptr<FailoverQueue> made(new FailoverQueue(std::move(options)));
  SendQueue::Options queue = made->options_.queue;
  queue.domain = made->options_.paths.front().domain;
  queue.records = &made->records_;
  queue.aliases = made->options_.first_has_aliases ? made->aliases_.data() : nullptr;
  ORIEL_TRY(made->queue_, SendQueue::create(*made->options_.paths.front().nic, queue));
  made->completed_ = queue.base;
  for (const Path& path : made->options_.paths) ORIEL_CHECK(made->add_branch(path));
  return made;
}

Status FailoverQueue::add_branch(const Path& path) {
  auto branch = std::make_unique<Branch>(path, options_.health, options_.clock->now());
  if (branches_.empty()) {
    branch->queue = queue_->number();
  } else {
    const dq::QueueView& view = queue_->view();
    ORIEL_TRY(branch->fetch_key, path.nic->register_memory(path.domain, queue_->fetch_slots()));
    KeyAliases& aliases = aliases_[branches_.size()];
    aliases.add_local(view.fetch_key, branch->fetch_key);
    QueueSetup setup = queue_->setup();
    setup.domain = path.domain;
    setup.aliases = &aliases;
    setup.number = path.queue;
    setup.named = queue_->number();
    ORIEL_TRY(branch->queue, path.nic->create_queue(setup));
    branch->owns_queue = true;
  }
  ORIEL_CHECK(add_probe(*branch));
  branches_.push_back(std::move(branch));
  return {};
}

Status FailoverQueue::add_probe(Branch& branch) {
  SendQueue::Options options;
  options.domain = branch.path.domain;
  options.number = branch.path.probe;
  options.depth = dq::kDepthLeast;
  options.fetch_slots = 1;
  options.peer = options_.queue.peer;
  // It asks until it is answered: a probe that is late is one of a path that is back.
  options.answer_timeout = options_.health.probe_every * 4;
  options.repeats_most = std::numeric_limits<std::uint32_t>::max();
  options.records = &branch.probe_records;
  ORIEL_TRY(branch.probe, SendQueue::create(*branch.path.nic, options));
  return {};
}

std::vector<FailoverQueue::End> FailoverQueue::ends() const {
  std::vector<End> ends;
  for (const auto& branch : branches_) {
    ends.push_back(
        {branch->path.nic->address(branch->path.wire), branch->queue, branch->probe->number()});
  }
  return ends;
}

Status FailoverQueue::connect(const std::vector<End>& peer) {
  if (peer.size() != branches_.size()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} paths to rank {}, which has {}", branches_.size(),
                             options_.queue.peer, peer.size()));
  }
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    Branch& branch = *branches_[i];
    branch.peer = peer[i];
    ORIEL_CHECK(branch.probe->connect(
        {branch.path.wire, peer[i].address, peer[i].probe, branch.probe_epoch}));
  }
  const Branch& first = *branches_.front();
  ORIEL_CHECK(
      queue_->connect({first.path.wire, first.peer.address, first.peer.queue, agreement_.epoch()}));
  const std::lock_guard lock(mutex_);
  connected_ = true;
  return {};
}

void FailoverQueue::send_probe(Branch& branch) {
  const dq::QueueView& view = branch.probe->view();
  // Nobody else posts here, and all before it are complete: neither call waits.
  dq::Reservation place;
  if (dq::reserve(device::Thread(), view, 1, place, {}) != dq::QueueOutcome::done) return;
  // A write of no bytes needs no key.
  const dq::Entry<2> entry{
      {dq::control_part(dq::Opcode::write, 0, {view.number, place.base}, 2, dq::kSignalled),
       dq::remote_part({})}};
  dq::write_entry(view, place, 0, entry);
  if (dq::publish(device::Thread(), view, place, {}) != dq::QueueOutcome::done) return;
  ++branch.probes;
  branch.probe_open = true;
}

bool FailoverQueue::probe_answered(const Branch& branch) {
  const dq::QueueView& view = branch.probe->view();
  static_cast<void>(dq::detail::look_at_completion<device::Memory>(view));
  return view.indexes->completed >= branch.probes;
}

Status FailoverQueue::restart_probe(Branch& branch, std::uint32_t epoch) {
  branch.probe_epoch = epoch;
  NicSoft& nic = *branch.path.nic;
  const std::uint32_t number = branch.probe->number();
  ORIEL_CHECK(nic.to_error(number));
  ORIEL_CHECK(nic.to_reset(number));
  branch.probe_records.error.reset();
  branch.probe_records.refused = Syndrome::none;
  ORIEL_CHECK(
      branch.probe->connect({branch.path.wire, branch.peer.address, branch.peer.probe, epoch}));
  return nic.ring_again(number);
}

bool FailoverQueue::mend_probes(TimePoint now) {
  bool any = false;
  std::array<std::uint32_t, kPathsMost> epochs{};
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    Branch& branch = *branches_[i];
    std::uint32_t wanted = std::max(branch.probe_epoch, agreement_.peer().probes[i]);
    if (now - branch.probe_seen >= options_.health.probe_every * 4) {
      branch.probe_seen = now;
      const auto state = branch.path.nic->state(branch.probe->number());
      const bool failed = state.ok() && *state == QueueState::error;
      if (failed) wanted = std::max(wanted, branch.probe_epoch + 1);
    }
    if (wanted > branch.probe_epoch) {
      // Without it the path is as good as dead, which is what it then looks like.
      static_cast<void>(restart_probe(branch, wanted));
      any = true;
    }
    epochs[i] = branch.probe_epoch;
  }
  agreement_.set_probes(epochs);
  return any;
}

bool FailoverQueue::has_work() const {
  const QueueMemory& memory = queue_->memory();
  const std::uint16_t told =
      told_end(memory.doorbell, memory.record, queue_->setup().mode, completed_);
  return told != static_cast<std::uint16_t>(completed_);
}

bool FailoverQueue::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !connected_) return false;
  const TimePoint now = options_.clock->now();
  bool any = listen_to_peer(now);
  // The queue that is in use from here on is the one to look at.
  any = act(now) || any;
  any = look_at_queue(now) || any;
  any = mend_probes(now) || any;
  any = look_at_paths(now) || any;
  any = answer_question() || any;
  any = choose(now) || any;
  agreement_.tick(now);
  any = act(now) || any;
  if (tell_at_.has_value() && now >= *tell_at_) {
    tell_at_.reset();
    tell_producers();
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
  std::size_t heard = 0;
  for (; heard < kHeardMost && options_.channel->receive(message); ++heard) {
    const Result<PathStatement> statement = decode_statement(message);
    if (!statement.ok()) {
      agreement_.end(statement.error().message());
      continue;
    }
    agreement_.hear(*statement, now);
  }
  return heard != 0;
}

bool FailoverQueue::look_at_queue(TimePoint now) {
  if (!agreement_.has_queue()) return false;
  Branch& branch = *branches_[static_cast<std::size_t>(agreement_.path())];
  const Result<QueueReport> report = branch.path.nic->report(branch.queue);
  if (!report.ok()) {
    branch.health.give_up(now);
    return true;
  }
  look_at_report(branch, *report, now);
  return false;
}

void FailoverQueue::look_at_report(Branch& branch, const QueueReport& report, TimePoint now) {
  if (report.completed != completed_ || report.heard > heard_) {
    completed_ = report.completed;
    heard_ = std::max(heard_, report.heard);
    branch.health.progressed(now);
  }
  const bool running = agreement_.stage() == PathStage::running;
  branch.health.has_work(running && (has_work() || asked_.has_value()), now);
  if (report.refused != Syndrome::none) return agreement_.end(Syndrome::none, report.refused);
  if (report.state != QueueState::error) return;
  const Syndrome syndrome = report.error.has_value() ? report.error->syndrome : Syndrome::flushed;
  if (!is_path_error(syndrome)) {
    fatal_ = report.error;
    return agreement_.end(syndrome, Syndrome::none);
  }
  branch.health.error(syndrome, now);
  if (branch.health.is_usable()) {
    // By the same path once more.
    tell_usable();
    agreement_.leave(now);
  }
}

void FailoverQueue::ask() {
  const std::lock_guard lock(mutex_);
  if (!asked_.has_value()) asked_ = options_.clock->now();
}

/// By the path in use, and by the next one when that has been silent for too long.
bool FailoverQueue::answer_question() {
  if (!asked_.has_value() || agreement_.stage() != PathStage::running) return false;
  if (answered() >= *asked_) {
    asked_.reset();
    return false;
  }
  Branch& branch = *branches_[static_cast<std::size_t>(agreement_.path())];
  if (branch.probe_open) return false;
  send_probe(branch);
  return true;
}

bool FailoverQueue::look_at_paths(TimePoint now) {
  bool any = false;
  for (const auto& branch : branches_) {
    if (branch->probe_open && probe_answered(*branch)) {
      branch->probe_open = false;
      branch->health.probe_answered(now);
      any = true;
    }
    branch->health.tick(now);
    if (!branch->probe_open && branch->health.take_probe(now)) {
      send_probe(*branch);
      any = true;
    }
    const PathState state = branch->health.state();
    // A ring that was overlooked looks like a path that is dead.
    const bool fresh = state == PathState::suspected && branch->seen != state;
    if (fresh) static_cast<void>(branch->path.nic->ring_again(branch->queue));
    branch->seen = state;
  }
  tell_usable();
  return any;
}

void FailoverQueue::tell_usable() {
  PathMask usable = 0;
  std::array<PathCause, kPathsMost> causes{};
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    const PathHealth& health = branches_[i]->health;
    if (health.is_usable()) usable = static_cast<PathMask>(usable | 1u << i);
    causes[i] = health.cause();
  }
  agreement_.set_usable(usable, causes);
}

bool FailoverQueue::choose(TimePoint now) {
  if (!agreement_.has_queue()) return false;
  const auto path = static_cast<std::size_t>(agreement_.path());
  if (!branches_[path]->health.is_usable()) {
    agreement_.leave(now);
    return true;
  }
  bool better = false;
  for (std::size_t i = 0; i < path && agreement_.stage() == PathStage::running; ++i) {
    const bool there = (agreement_.peer_usable_now() >> i & 1) != 0;
    better = better || (there && branches_[i]->health.is_usable());
  }
  if (!better) {
    better_since_.reset();
    return false;
  }
  // What works is left only for a peer that can be talked to now: without the channel neither end
  // would ever send again.
  if (!better_since_.has_value()) better_since_ = now;
  if (agreement_.heard() <= *better_since_) return false;
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
      branches_[static_cast<std::size_t>(action.path)]->health.give_up(now);
      tell_usable();
      agreement_.leave(now);
    }
    any = true;
  }
  return any;
}

Status FailoverQueue::act(const PathAgreement::Action& action) {
  using Kind = PathAgreement::Action::Kind;
  if (action.kind == Kind::fail) {
    tell_at_ = options_.clock->now();
    if (is_hearsay()) *tell_at_ += options_.hearsay_pause;
    return {};
  }
  Branch& branch = *branches_[static_cast<std::size_t>(action.path)];
  NicSoft& nic = *branch.path.nic;
  // Over since the queue before could not be fenced.
  const bool is_over = agreement_.stage() == PathStage::over;
  if (action.kind != Kind::fence && is_over) return {};
  switch (action.kind) {
    case Kind::fence: {
      Status fenced = nic.to_error(branch.queue);
      // From here on no NIC has the records.
      agreement_.set_delivered(records_.delivery.expected());
      completed_ = records_.completed;
      if (!fatal_.has_value() && records_.error.has_value()) fatal_ = records_.error;
      branch.health.has_work(false, options_.clock->now());
      if (!fenced.ok()) end_unfenced();
      return {};
    }
    case Kind::listen:
      return listen(branch, action.epoch);
    case Kind::go:
      ORIEL_CHECK(nic.to_ready_to_send(branch.queue));
      return nic.ring_again(branch.queue);
    case Kind::fail:
      break;
  }
  return {};
}

/// A GPU has not moved what its NIC began: no other NIC may do that again before it has.
void FailoverQueue::end_unfenced() {
  fatal_ = CompletionRecord{.kind = CompletionRecord::Kind::request_error,
                            .queue = queue_->number(),
                            .index = static_cast<std::uint16_t>(completed_),
                            .syndrome = Syndrome::local_operation,
                            .complaint = Complaint::no_copies};
  agreement_.end(Syndrome::local_operation, Syndrome::none);
}

Status FailoverQueue::listen(Branch& branch, std::uint32_t epoch) {
  if (agreement_.peer().delivered < records_.number) {
    agreement_.end(fmt::format("it has accepted {} requests and answered {}",
                               agreement_.peer().delivered, records_.number));
    return {};
  }
  fatal_.reset();
  records_.error.reset();
  NicSoft& nic = *branch.path.nic;
  ORIEL_CHECK(nic.to_reset(branch.queue));
  ORIEL_CHECK(nic.to_init(branch.queue));
  return nic.to_ready_to_receive(branch.queue,
                                 {branch.path.wire, branch.peer.address, branch.peer.queue, epoch});
}

bool FailoverQueue::is_hearsay() const {
  const PathStatement& peer = agreement_.peer();
  if (fatal_.has_value()) return false;
  // An entry of the peer's, which knows what it was.
  if (records_.refused != Syndrome::none || peer.fatal != Syndrome::none) return true;
  const bool is_of_paths = peer.stage == PathStage::over && peer.refused == Syndrome::none;
  return is_of_paths && std::all_of(branches_.begin(), branches_.end(),
                                    [](const auto& branch) { return branch->health.is_usable(); });
}

void FailoverQueue::tell_producers() {
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
    if (is_gone) record.complaint = Complaint::given_back;
  }
  is_at_fault_ = records_.refused == Syndrome::remote_operation ||
                 records_.refused == Syndrome::remote_gone ||
                 peer.fatal == Syndrome::remote_operation;
  if (fatal_.has_value()) record = *fatal_;
  if (memory.first_error != nullptr) {
    std::atomic_ref<std::uint64_t>(*memory.first_error)
        .store(first_error_word(record), std::memory_order_release);
  }
  CompletionWriter(memory.completions, memory.completion_count).write(record);
  std::string paths;
  for (const auto& branch : branches_) {
    paths += fmt::format("{}{}", paths.empty() ? "" : ", ", branch->path.name);
  }
  failure_ = Error(ErrorCode::remote, fmt::format("the queue to rank {} over {} has ended: {}",
                                                  options_.queue.peer, paths, agreement_.reason()))
                 .with_scope(Scope::communicator);
}

std::optional<Error> FailoverQueue::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool FailoverQueue::is_at_fault() const {
  const std::lock_guard lock(mutex_);
  return is_at_fault_;
}

TimePoint FailoverQueue::answered() const {
  TimePoint latest = queue_->answered();
  for (const auto& branch : branches_) latest = std::max(latest, branch->probe->answered());
  return latest;
}

FailoverQueue::Pace FailoverQueue::pace() const {
  const std::lock_guard lock(mutex_);
  const PathStage stage = agreement_.stage();
  return {stage == PathStage::running || stage == PathStage::over, agreement_.path(), has_work()};
}

FailoverQueue::Sight FailoverQueue::sight() const {
  const std::lock_guard lock(mutex_);
  Sight sight{agreement_.epoch(), agreement_.stage(), agreement_.path(), {}};
  for (const auto& branch : branches_) sight.paths.push_back(branch->health.state());
  return sight;
}

}  // namespace oriel::net
