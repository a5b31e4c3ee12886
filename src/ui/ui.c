#include "ui/ui.h"

/* status_page.c, generated from status.html */
extern const unsigned char kv_ui_status_page[];
extern const size_t kv_ui_status_page_size;

const char *kv_ui_page(size_t *n) {
    *n = kv_ui_status_page_size;
    return (const char *)kv_ui_status_page;
}
