# Puts src/ui/status.html into kv_ui as a byte array.
# Included by the top CMakeLists.txt after kvasir_module(ui); run as a script (-P) by the build itself.
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${IN} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
  file(WRITE ${OUT} "/* Generated from status.html by embed.cmake. */
#include <stddef.h>
extern const unsigned char kv_ui_status_page[];
extern const size_t kv_ui_status_page_size;
const unsigned char kv_ui_status_page[] = {
${bytes}
};
const size_t kv_ui_status_page_size = sizeof kv_ui_status_page;
")
else()
  set(page ${CMAKE_CURRENT_LIST_DIR}/status.html)
  set(generated ${CMAKE_BINARY_DIR}/generated/status_page.c)
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -DIN=${page} -DOUT=${generated} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${page} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Embedding status.html")
  target_sources(kv_ui PRIVATE ${generated})
endif()
