/* ui/ui.h: the status page at `/`: status.html, one file with its own script and style, put into the binary at build
 * time (embed.cmake). It asks /health, /props, /slots and /metrics, and needs nothing from anywhere else.
 *
 * Thread rule: static data.
 */
#ifndef KV_UI_UI_H
#define KV_UI_UI_H

#include <stddef.h>

const char *kv_ui_page(size_t *n); /* static; not NUL-terminated */

#endif
