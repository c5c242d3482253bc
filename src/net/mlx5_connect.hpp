// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/error.hpp"

#include "net/mlx5_device.hpp"
#include "net/mlx5_handle.hpp"
#include "net/queue_setup.hpp"

/// The states of a queue pair: reset -> init -> ready to receive -> ready to send.
namespace oriel::net {

Mlx5QueueHandle own_handle(const Mlx5Device& device, std::uint32_t number, std::uint32_t psn);

/// From reset to ready-to-send. After a failure the queue pair is in reset again, unless the
/// adapter refuses that too.
Status connect_queue(const Mlx5Device& device, const Mlx5ObjectOwner& queue_pair,
                     const Mlx5QueueHandle& own, const Mlx5QueueHandle& peer);

/// What the adapter says.
Result<QueueState> query_queue(const Mlx5Device& device, const Mlx5ObjectOwner& queue_pair,
                               std::uint32_t number);

}  // namespace oriel::net
