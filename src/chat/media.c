#include "chat/media.h"

#include <string.h>

const char *kv_chat_media_kind(const char *type) {
    static const struct {
        const char *type, *kind;
    } kinds[] = {
        {"image_url", "image"},  {"input_image", "image"}, {"image", "image"},
        {"image_file", "image"}, {"input_audio", "audio"}, {"audio_url", "audio"},
        {"audio", "audio"},      {"input_video", "video"}, {"video_url", "video"},
        {"video", "video"},      {"file", "file"},         {"input_file", "file"},
        {"document", "file"},    {"file_url", "file"},     {"container_upload", "file"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].type, type) == 0) return kinds[i].kind;
    return NULL;
}

kv_status kv_chat_media_part(json_t **out, const char *kind, const char *path, kv_on_image on_image, kv_error *err) {
    *out = NULL;
    if (strcmp(kind, "image") != 0)
        return kv_fail_field(err, path, "'%s' is %s input, which this server does not support; send text", path, kind);
    if (on_image == KV_IMAGE_ERROR)
        return kv_fail_field(err, path,
                             "'%s' is image input, which this server does not support; send text, or start it with "
                             "--on-image placeholder to have \"%s\" stand in the place of images",
                             path, KV_IMAGE_TEXT);
    *out = json_pack("{s:s, s:s}", "type", "text", "text", KV_IMAGE_TEXT);
    return KV_OK;
}

kv_on_image kv_chat_on_image(const char *word) {
    return word && strcmp(word, "placeholder") == 0 ? KV_IMAGE_PLACEHOLDER : KV_IMAGE_ERROR;
}
