/* chat/schema.h: JSON schemas, checked and put into the words of the engine's converter.
 *
 * The converter turns a schema into a grammar. What it cannot express it leaves out without a word, and an answer then
 * breaks the schema that it was promised to follow. So each schema is walked first, references included:
 *
 *   what the converter follows            stays
 *   what can be said in its words         is rewritten: patterns (pattern.h), formats as patterns, "$ref": "#", an
 *                                         allOf of one, boolean schemas, prefixItems with "items": false
 *   what says nothing of a value's shape  stays: title, description, default, examples, unknown keywords and formats
 *   everything else                       KV_INVALID that names the keyword and where it stands:
 *                                         "response_format.json_schema.schema.properties.a: 'not' is not supported"
 *
 * or, without `strict`, is left out: the rest of the schema is followed.
 *
 * Two things are not checked: oneOf is read as anyOf (an answer may match two of its alternatives), and an object
 * without additionalProperties gets only the properties that are named, which the schema allows.
 *
 * Thread rule: none; the input is only read.
 */
#ifndef KV_CHAT_SCHEMA_H
#define KV_CHAT_SCHEMA_H

#include "base/json.h"

/* What optional properties cost the engine's converter, of a schema with all that is in it: for each of an object's, the
 * bytes of the names of those that may follow it are written down again. Measured: 27 million take a second. */
#define KV_SCHEMA_MAX_COST 20e6
double kv_chat_schema_cost(const json_t *schema);

/* KV_INVALID when the engine's converter would need endless time or stack for it: names and "$ref"s of more than 1024
 * bytes, objects of more than 500 properties, more than 20000 objects in all, KV_SCHEMA_MAX_COST. For schemas that are handed on as they are;
 * kv_chat_schema looks by itself. Recurses as deep as the JSON is. */
kv_status kv_chat_schema_size(const json_t *schema, const char *path, kv_error *err);

/* *out: a new schema for the converter. `path` is the schema's place in the request, for errors. */
kv_status kv_chat_schema(json_t **out, const json_t *schema, const char *path, bool strict, kv_error *err);

#endif
