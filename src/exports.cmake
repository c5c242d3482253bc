# SPDX-License-Identifier: Apache-2.0
# Writes exports.map with the number of this build, a digest of the objects that are linked:
#   cmake -DOBJECTS=FILE -DPROJECT_VERSION=0.1.0 -DTEMPLATE=exports.map.in -DOUT=exports.map
#     -P exports.cmake
# OBJECTS names a file with the path of one object on each line.
file(STRINGS ${OBJECTS} objects)
set(digests "")
foreach(object ${objects})
  file(SHA256 ${object} digest)
  string(APPEND digests ${digest})
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)
set(ORIEL_BUILD ${PROJECT_VERSION}_${digest})
configure_file(${TEMPLATE} ${OUT} @ONLY)
