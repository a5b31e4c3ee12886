# `cmake --install`: PREFIX/bin/kvasir, the engine's libraries in PREFIX/lib/kvasir, man page and completions below
# PREFIX/share, units in PREFIX/lib/systemd, the licences in PREFIX/share/doc/kvasir. Everything but the units finds
# everything else by relative paths, so the tree can be moved, and the build folder can go.
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

# Man page and completions, written by the program itself from its tables, so that they are what it takes. Where it cannot
# run on this machine, or would report to a sanitizer, there are none.
if(NOT CMAKE_CROSSCOMPILING AND NOT KVASIR_SANITIZE)
  set(_share ${CMAKE_BINARY_DIR}/share)
  file(MAKE_DIRECTORY ${_share})
  set(_write "\"$1\" help man > kvasir.1")
  foreach(shell bash zsh fish)
    string(APPEND _write " && \"$1\" completion ${shell} > completion.${shell}")
  endforeach()
  add_custom_command(TARGET kvasir POST_BUILD VERBATIM
    COMMAND sh -c "${_write}" sh $<TARGET_FILE:kvasir> WORKING_DIRECTORY ${_share})
  install(FILES ${_share}/kvasir.1 DESTINATION share/man/man1)
  install(FILES ${_share}/completion.bash DESTINATION share/bash-completion/completions RENAME kvasir)
  install(FILES ${_share}/completion.zsh DESTINATION share/zsh/site-functions RENAME _kvasir)
  install(FILES ${_share}/completion.fish DESTINATION share/fish/vendor_completions.d RENAME kvasir.fish)
endif()

# Units name the program by its absolute path, which is known only when the prefix is.
set(KVASIR_GPU_GROUPS "video render" CACHE STRING "groups that own GPU devices, for the systemd unit")
install(CODE "
  set(KVASIR_BINARY \"\${CMAKE_INSTALL_PREFIX}/bin/kvasir\")
  set(KVASIR_GPU_GROUPS \"${KVASIR_GPU_GROUPS}\")
  set(_from \"${CMAKE_SOURCE_DIR}/packaging\")
  set(_to \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  set(_apple \"${APPLE}\")")
install(CODE [[
  if(_apple)
    configure_file(${_from}/kvasir.server.plist.in ${_to}/share/kvasir/kvasir.server.plist @ONLY)
  else()
    configure_file(${_from}/kvasir.service.in ${_to}/lib/systemd/system/kvasir.service @ONLY)
    configure_file(${_from}/kvasir.user.service.in ${_to}/lib/systemd/user/kvasir.service @ONLY)
  endif()]])
install(FILES packaging/kvasir.conf packaging/kvasir.logrotate DESTINATION share/doc/kvasir/examples)
