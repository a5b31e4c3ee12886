/* http/cors.h: which browser pages may talk to us, and under which names we may be addressed.
 *
 * A page from anywhere can send requests to a server on the user's own machine. Three checks stand against it: the
 * Host header (a page whose own name was made to point here, "DNS rebinding", carries that name), the Origin header
 * (a page that asks across origins says where it is from), and, for programs, the API key.
 *
 * Thread rule: pure functions. All arguments are NUL-terminated, any bytes.
 */
#ifndef KV_HTTP_CORS_H
#define KV_HTTP_CORS_H

#include <stdbool.h>

/* A Host header's value: an IP literal, localhost or one of `names` (whole, without port; "*" = any), any port. */
bool kv_host_allowed(const char *host, const char *const *names, int n);

/* An Origin header's value against a list such as "localhost,https://chat.example.org". "localhost" stands for http and
 * https on localhost, 127.0.0.1 and [::1] with any port, "*" for all, "" for none. */
bool kv_origin_allowed(const char *config, const char *origin);
/* Is the page from this very server: does the origin's host and port equal the Host header's? */
bool kv_origin_is_host(const char *origin, const char *host);

/* An incoming x-request-id that is safe to repeat in a header and a log: 1 to 128 of A-Z a-z 0-9 . _ : - */
bool kv_request_id_valid(const char *id);
/* A comma-separated list of header names, as in Access-Control-Request-Headers. */
bool kv_header_names_valid(const char *list);
/* A header name by RFC 9110 (a token): no spaces, no control characters. */
bool kv_header_name_valid(const char *name);

#endif
