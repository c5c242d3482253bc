// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

/// Name of each compared function, and its type in the compiler's spelling. signatures.cpp is
/// compiled once with each header. ncclDevCommCreate and ncclDevCommDestroy are not compared.
using Signatures = std::vector<std::pair<std::string, std::string>>;
Signatures oriel_signatures();
Signatures vendor_signatures();
