# `cmake --install`: PREFIX/bin/kvasir, the engine's libraries in PREFIX/lib/kvasir, the licences in
# PREFIX/share/doc/kvasir. Everything finds everything else by relative paths, so the tree can be moved, and the build
# folder can go.
if(APPLE)
  set(_origin "@loader_path")
else()
  set(_origin "\$ORIGIN")
endif()
set_target_properties(kvasir PROPERTIES INSTALL_RPATH "${_origin}/../lib/kvasir")
install(TARGETS kvasir RUNTIME DESTINATION bin)
# The engine names its backends' directory by where libllama lies, so all of them go into one.
install(DIRECTORY ${KVASIR_ENGINE_LIB_DIR}/ DESTINATION lib/kvasir USE_SOURCE_PERMISSIONS FILES_MATCHING
  PATTERN "libllama.*" PATTERN "libllama-common.*" PATTERN "libggml*" PATTERN "*.metal"
  PATTERN "*.a" EXCLUDE PATTERN "CMakeFiles" EXCLUDE)
install(FILES LICENSE DESTINATION share/doc/kvasir)
install(FILES ${KVASIR_ENGINE_SOURCE}/LICENSE DESTINATION share/doc/kvasir RENAME LICENSE.llama.cpp)
if(KVASIR_LLAMA_DIR AND NOT APPLE)
  # A build of the user's own carries its build folder as rpath; a later rebuild there must not reach what is installed.
  install(CODE "
    file(GLOB libraries \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/kvasir/*.so*\")
    foreach(library \${libraries})
      if(NOT IS_SYMLINK \"\${library}\")
        file(RPATH_SET FILE \"\${library}\" NEW_RPATH \"\\$ORIGIN\")
      endif()
    endforeach()")
endif()
