// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "oriel/error.hpp"

#include "net/mlx5/mlx5_device.hpp"
#include "net/mlx5/mlx5_handle.hpp"

/// The states of a queue pair: reset -> init -> ready to receive -> ready to send.
namespace oriel::net {

Mlx5QueueHandle own_handle(const Mlx5Device& device, std::uint32_t number, std::uint32_t psn);

/// Takes the queue pair from reset to ready-to-send. Calls `post_receives` in the init state, in
/// which receives may be posted and the peer's packets are not accepted yet.
Status connect_queue(const Mlx5Device& device, const Mlx5ObjectOwner& queue_pair,
                     const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer,
                     const std::function<Status()>& post_receives);

}  // namespace oriel::net
