# SPDX-License-Identifier: Apache-2.0
# Installs liboriel.so.0, the public headers, a CMake package (oriel::oriel) and a pkg-config file
# (oriel). For programs that know only NCCL, also installs libnccl.so.2 and the audit module of
# `oriel-run --preload`. The folders of the tools install the tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(oriel_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/oriel)
install(TARGETS oriel EXPORT oriel-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET oriel_nccl)
  install(TARGETS oriel_nccl oriel_audit LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.cuh")
install(EXPORT oriel-targets NAMESPACE oriel:: DESTINATION ${oriel_package_dir})

write_basic_package_version_file(${PROJECT_BINARY_DIR}/oriel-config-version.cmake
  COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/oriel-config.cmake.in ${PROJECT_BINARY_DIR}/oriel-config.cmake
  INSTALL_DESTINATION ${oriel_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/oriel-config.cmake
  ${PROJECT_BINARY_DIR}/oriel-config-version.cmake
  DESTINATION ${oriel_package_dir})

# oriel.pc locates the prefix relative to its own folder, so that an installed tree can be moved.
file(RELATIVE_PATH oriel_pc_to_prefix
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/oriel.pc.in ${PROJECT_BINARY_DIR}/oriel.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/oriel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
