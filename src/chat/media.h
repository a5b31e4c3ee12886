/* chat/media.h: what becomes of images, audio and files in a conversation.
 *
 * The models here read text. Agents send an image once and then again with every later message, so refusing it ends a
 * session for good: with `--on-image placeholder` a fixed text stands in its place. The text is always the same, for
 * the prompt to be the same the next time. What was said aloud or written in a file cannot be left out like that, and is
 * refused by name.
 *
 * Every API comes here: OpenAI's chat through kv_chat_check_messages; what other APIs have translated goes the same way,
 * or they call kv_chat_media_part with the path that their client wrote.
 *
 * Thread rule: none.
 */
#ifndef KV_CHAT_MEDIA_H
#define KV_CHAT_MEDIA_H

#include "base/json.h"

typedef enum kv_on_image {
    KV_IMAGE_ERROR,       /* KV_INVALID that names the part and the option */
    KV_IMAGE_PLACEHOLDER, /* KV_IMAGE_TEXT in its place */
} kv_on_image;

#define KV_IMAGE_TEXT "[image]"

/* "image", "audio", "video" or "file" for the type of a content part in any of the APIs ("image_url", "input_image",
 * "image", "input_audio", "document" …); NULL for every other type. Static. */
const char *kv_chat_media_kind(const char *type);

/* A part of that kind at `path` ("messages[3].content[1]"). KV_OK: *out is a new {"type":"text","text":"[image]"}.
 * KV_INVALID with the field set otherwise. */
kv_status kv_chat_media_part(json_t **out, const char *kind, const char *path, kv_on_image on_image, kv_error *err);

/* --on-image's words; anything but "placeholder", NULL too, is an error. */
kv_on_image kv_chat_on_image(const char *word);

#endif
