# The engine: an INTERFACE target `kvasir_engine` with include paths and libraries, from one of
#   the pinned packages      (default; KVASIR_ENGINE_PLATFORM chooses the backend, cmake/engine.pin lists them)
#   the pinned source        (KVASIR_ENGINE_PLATFORM=source, and wherever no package is pinned)
#   the user's llama.cpp     (KVASIR_LLAMA_DIR: a source tree with a build of shared libraries)
# Gives KVASIR_ENGINE_RELEASE, KVASIR_ENGINE_LIB_DIR and KVASIR_ENGINE_SOURCE (headers, templates).
set(KVASIR_LLAMA_DIR "" CACHE PATH "a llama.cpp source tree with a build, instead of the pinned engine")
set(KVASIR_LLAMA_BUILD_DIR "" CACHE PATH "its build folder (default: build/ in it)")
set(KVASIR_ENGINE_PLATFORM "" CACHE STRING "engine package: linux-x64-vulkan, linux-x64-cuda, …, source; empty = this machine's CPU package")
option(KVASIR_ANY_ENGINE "take a KVASIR_LLAMA_DIR of another release than the pinned one" OFF)

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/cmake/engine.pin ${CMAKE_SOURCE_DIR}/scripts/fetch-engine.sh)
file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/engine.pin _line REGEX "^engine-release ")
string(REGEX REPLACE "^engine-release +" "" KVASIR_ENGINE_PIN "${_line}")

# kvasir_llama_release(out dir): "vX.Y.Z" as the tree's own CMakeLists.txt states it, "" when it does not.
function(kvasir_llama_release out dir)
  set(release "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${dir}/CMakeLists.txt line REGEX "^set\\(LLAMA_VERSION_${part} +[0-9]+\\)")
    if(line MATCHES "([0-9]+)\\)")
      string(APPEND release ".${CMAKE_MATCH_1}")
    endif()
  endforeach()
  string(REGEX REPLACE "^\\." "v" release "${release}")
  set(${out} "${release}" PARENT_SCOPE)
endfunction()

# kvasir_find_engine_library(out name …): the first shared library of these names in the user's build.
function(kvasir_find_engine_library out)
  unset(found CACHE)
  find_library(found NAMES ${ARGN} NO_CACHE NO_DEFAULT_PATH
    PATHS ${KVASIR_LLAMA_BUILD_DIR} ${KVASIR_LLAMA_DIR}
    PATH_SUFFIXES bin lib src common ggml/src)
  if(NOT found OR found MATCHES "\\.a$")
    message(FATAL_ERROR "KVASIR_LLAMA_DIR=${KVASIR_LLAMA_DIR}: no shared lib${ARGV1}${CMAKE_SHARED_LIBRARY_SUFFIX} in "
      "${KVASIR_LLAMA_BUILD_DIR}. Build it there with\n"
      "  cmake -S ${KVASIR_LLAMA_DIR} -B ${KVASIR_LLAMA_BUILD_DIR} -DBUILD_SHARED_LIBS=ON\n"
      "  cmake --build ${KVASIR_LLAMA_BUILD_DIR} --target llama llama-common ggml\n"
      "or name another build folder with -DKVASIR_LLAMA_BUILD_DIR=DIR.")
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

if(KVASIR_LLAMA_DIR)
  get_filename_component(KVASIR_LLAMA_DIR ${KVASIR_LLAMA_DIR} ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  if(NOT EXISTS ${KVASIR_LLAMA_DIR}/include/llama.h OR NOT EXISTS ${KVASIR_LLAMA_DIR}/common/chat.h)
    message(FATAL_ERROR "KVASIR_LLAMA_DIR=${KVASIR_LLAMA_DIR} is not a llama.cpp source tree: include/llama.h or common/chat.h is missing.")
  endif()
  if(NOT KVASIR_LLAMA_BUILD_DIR)
    set(KVASIR_LLAMA_BUILD_DIR ${KVASIR_LLAMA_DIR}/build)
  endif()
  kvasir_llama_release(KVASIR_ENGINE_RELEASE ${KVASIR_LLAMA_DIR})
  if(NOT KVASIR_ENGINE_RELEASE STREQUAL KVASIR_ENGINE_PIN)
    if(NOT KVASIR_ANY_ENGINE)
      message(FATAL_ERROR "KVASIR_LLAMA_DIR=${KVASIR_LLAMA_DIR} is llama.cpp ${KVASIR_ENGINE_RELEASE}, kvasir is made for "
        "${KVASIR_ENGINE_PIN} (its C++ parts have no stable interface). Check out that release, or try with -DKVASIR_ANY_ENGINE=ON.")
    endif()
    message(WARNING "engine ${KVASIR_ENGINE_RELEASE} instead of the pinned ${KVASIR_ENGINE_PIN}: untested")
  endif()
  set(KVASIR_ENGINE_SOURCE ${KVASIR_LLAMA_DIR})
  kvasir_find_engine_library(_llama llama)
  kvasir_find_engine_library(_common llama-common)
  kvasir_find_engine_library(_ggml ggml)
  kvasir_find_engine_library(_base ggml-base)
  set(_libs ${_common} ${_llama} ${_ggml} ${_base})
  get_filename_component(KVASIR_ENGINE_LIB_DIR ${_llama} DIRECTORY)
else()
  set(_dir ${CMAKE_SOURCE_DIR}/build/engine)
  if(KVASIR_ENGINE_PLATFORM)
    string(APPEND _dir -${KVASIR_ENGINE_PLATFORM}) # beside the default one, so that builds do not evict each other
  endif()
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch-engine.sh ${_dir} ${KVASIR_ENGINE_PLATFORM} COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${_dir}/RELEASE KVASIR_ENGINE_RELEASE LIMIT_COUNT 1)
  set(KVASIR_ENGINE_SOURCE ${_dir}/source)
  set(KVASIR_ENGINE_LIB_DIR ${_dir}/lib)
  # The packages put backend and release into the names: libllama.so, libllama.v0.5.0.so, libllama.cuda.v0.5.0.so.
  set(_libs)
  foreach(name llama-common llama ggml ggml-base)
    file(GLOB found ${KVASIR_ENGINE_LIB_DIR}/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}
      ${KVASIR_ENGINE_LIB_DIR}/lib${name}.*${CMAKE_SHARED_LIBRARY_SUFFIX})
    if(NOT found)
      message(FATAL_ERROR "${KVASIR_ENGINE_LIB_DIR} has no lib${name}; remove ${_dir} and configure again.")
    endif()
    list(GET found 0 found)
    list(APPEND _libs ${found})
  endforeach()
endif()
message(STATUS "engine: llama.cpp ${KVASIR_ENGINE_RELEASE} in ${KVASIR_ENGINE_LIB_DIR}")

add_library(kvasir_engine INTERFACE)
target_include_directories(kvasir_engine SYSTEM INTERFACE ${KVASIR_ENGINE_SOURCE}/include
  ${KVASIR_ENGINE_SOURCE}/ggml/include ${KVASIR_ENGINE_SOURCE}/common ${KVASIR_ENGINE_SOURCE}/vendor)
target_link_libraries(kvasir_engine INTERFACE ${_libs}) # full paths: CMake sets the build's rpath, and drops it at install
target_compile_definitions(kvasir_engine INTERFACE
  KVASIR_ENGINE_RELEASE="${KVASIR_ENGINE_RELEASE}" KVASIR_ENGINE_LIB_DIR="${KVASIR_ENGINE_LIB_DIR}"
  KVASIR_ENGINE_SOURCE="${KVASIR_ENGINE_SOURCE}") # the tests read its chat templates
