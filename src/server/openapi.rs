//! The OpenAPI document, made from the route table and the wire types.
//!
//! In: nothing. Out: JSON. Invariant: `docs/reference/openapi.json` is exactly this; a test compares them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::reply::{ChatBody, ChatChunk, CompletionBody, ErrorBody, ModelBody, ModelList};
use super::routes::{ROUTES, Route};
use super::speech::{SpeechBody, VoiceList};
use super::wire::{ChatRequest, CompletionRequest};

fn reference<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// Bodies of a route: request, response, and the chunks of a streamed response.
fn bodies(route: &Route, schemas: &mut SchemaGenerator) -> (Option<Value>, Option<Value>, Option<Value>) {
    match route.path {
        "/v1/chat/completions" => (
            Some(reference::<ChatRequest>(schemas)),
            Some(reference::<ChatBody>(schemas)),
            Some(reference::<ChatChunk>(schemas)),
        ),
        "/v1/completions" => (
            Some(reference::<CompletionRequest>(schemas)),
            Some(reference::<CompletionBody>(schemas)),
            Some(reference::<CompletionBody>(schemas)),
        ),
        "/v1/audio/speech" => (Some(reference::<SpeechBody>(schemas)), None, None),
        "/v1/audio/voices" => (None, Some(reference::<VoiceList>(schemas)), None),
        "/v1/models" => (None, Some(reference::<ModelList>(schemas)), None),
        "/v1/models/{id}" => (None, Some(reference::<ModelBody>(schemas)), None),
        _ => (None, None, None),
    }
}

fn operation(route: &Route, schemas: &mut SchemaGenerator) -> Value {
    let (request, response, chunk) = bodies(route, schemas);
    let mut content = Map::new();
    match route.path {
        "/" => content.insert("text/plain".to_owned(), json!({"schema": {"type": "string"}})),
        "/metrics" => content.insert(
            crate::observe::metrics::CONTENT_TYPE.to_owned(),
            json!({"schema": {"type": "string"}}),
        ),
        "/v1/audio/speech" => {
            for kind in ["audio/wav", "audio/pcm"] {
                let sound = json!({"schema": {"type": "string", "format": "binary"}});
                content.insert(kind.to_owned(), sound);
            }
            content.insert(
                "text/event-stream".to_owned(),
                json!({"schema": {"type": "object"}}),
            )
        }
        _ => content.insert(
            "application/json".to_owned(),
            json!({"schema": response.unwrap_or_else(|| json!({"type": "object"}))}),
        ),
    };
    if let Some(chunk) = chunk {
        content.insert("text/event-stream".to_owned(), json!({"schema": chunk}));
    }
    let failure = reference::<ErrorBody>(schemas);
    let mut operation = json!({
        "summary": route.about,
        "responses": {
            "200": {"description": "Done.", "content": content},
            "default": {"description": "Refused or failed.", "content": {"application/json": {"schema": failure}}},
        },
    });
    if let Some(request) = request {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": request}}});
    }
    if route.path.contains("{id}") {
        operation["parameters"] =
            json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if !route.open {
        operation["security"] = json!([{}, {"key": []}]);
    }
    operation
}

/// The document, indented, with a line break at its end.
pub fn document() -> String {
    let settings = SchemaSettings::openapi3();
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut schemas);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation;
    }
    let document = json!({
        "openapi": "3.0.3",
        "info": {
            "title": "edge-deploy",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI-compatible API of a local model server.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    });
    format!("{document:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_a_schema() {
        let text = document();
        let document: Value = serde_json::from_str(&text).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for part in text.split("\"$ref\": \"").skip(1) {
            let name = part.split('"').next().unwrap();
            let name = name
                .strip_prefix("#/components/schemas/")
                .unwrap_or_else(|| panic!("{name}"));
            assert!(schemas.contains_key(name), "{name}");
        }
        assert_eq!(document["paths"].as_object().unwrap().len(), ROUTES.len());
    }
}
