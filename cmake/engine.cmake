# The engine: an INTERFACE target `kvasir_engine` with include paths, libraries and rpath, from the pinned prebuilt
# packages (default) or from the user's own llama.cpp tree (-DKVASIR_LLAMA_DIR).
add_library(kvasir_engine INTERFACE)
if(KVASIR_LLAMA_DIR)
  message(FATAL_ERROR "KVASIR_LLAMA_DIR: not wired yet")
endif()
set(KVASIR_ENGINE_DIR ${CMAKE_SOURCE_DIR}/build/engine)
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/fetch-engine.sh ${KVASIR_ENGINE_DIR} COMMAND_ERROR_IS_FATAL ANY)
file(STRINGS ${KVASIR_ENGINE_DIR}/RELEASE KVASIR_ENGINE_RELEASE LIMIT_COUNT 1)
set(_src ${KVASIR_ENGINE_DIR}/source)
target_include_directories(kvasir_engine SYSTEM INTERFACE ${_src}/include ${_src}/ggml/include ${_src}/common ${_src}/vendor)
target_link_directories(kvasir_engine INTERFACE ${KVASIR_ENGINE_DIR}/lib)
target_link_libraries(kvasir_engine INTERFACE
  -l:libllama-common.so -l:libllama.${KVASIR_ENGINE_RELEASE}.so -l:libggml.${KVASIR_ENGINE_RELEASE}.so -l:libggml-base.so)
target_link_options(kvasir_engine INTERFACE -Wl,-rpath,${KVASIR_ENGINE_DIR}/lib)
target_compile_definitions(kvasir_engine INTERFACE KVASIR_ENGINE_RELEASE="${KVASIR_ENGINE_RELEASE}" KVASIR_ENGINE_LIB_DIR="${KVASIR_ENGINE_DIR}/lib")
