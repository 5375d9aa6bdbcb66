//! What clients send: the OpenAI request bodies, as far as we serve or knowingly refuse them.
//!
//! In: JSON. Out: typed fields, all optional. Invariant: unknown fields are ignored, as OpenAI's own clients need;
//! fields that would change the answer and are not built are listed here and refused by `validate`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// One text or several.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// A prompt for plain completion.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a text, an array of texts, an array of token ids, or an array of arrays of token ids"
)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Several texts, each answered.
    Texts(Vec<String>),
    /// A prompt already tokenised.
    Tokens(Vec<u32>),
    /// Several of them.
    TokenLists(Vec<Vec<u32>>),
}

/// Asked of a streamed answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct StreamOptions {
    /// Send a last chunk with the counts.
    pub include_usage: Option<bool>,
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// A text, or an array of text parts.
    #[serde(default)]
    pub content: Option<Content>,
    /// The author's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Not served; refused when not empty.
    #[serde(default, deserialize_with = "present")]
    pub tool_calls: Option<Value>,
    /// Not served; refused when not null.
    #[serde(default, deserialize_with = "present")]
    pub function_call: Option<Value>,
    /// Not served; refused when not null.
    #[serde(default, deserialize_with = "present")]
    pub audio: Option<Value>,
}

/// A message's content.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a text or an array of content parts")]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts; only `text` parts are served.
    Parts(#[serde(deserialize_with = "objects")] Vec<Part>),
}

/// One part of a message's content.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct Part {
    /// `text`; others are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    #[serde(default)]
    pub text: Option<String>,
}

/// Something that only a JSON object stands for: derived structs would take an array for their fields in order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Object<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        input.deserialize_map(Reader(PhantomData))
    }
}

/// A list of objects.
fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Vec<T>, D::Error> {
    let objects: Vec<Object<T>> = Deserialize::deserialize(input)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

/// An object, or `null` for absent.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Option<T>, D::Error> {
    let object: Option<Object<T>> = Deserialize::deserialize(input)?;
    Ok(object.map(|Object(value)| value))
}

/// A field that may be of any kind; `null` counts as absent.
fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Value>, D::Error> {
    Ok(Some(Value::deserialize(input)?).filter(|value| !value.is_null()))
}

/// Both endpoints share these fields; repeated by macro because a flattened struct loses the path of an error.
macro_rules! request {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident: $type:ty,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct $name {
            $($(#[doc = $field_doc])+ $(#[serde($($serde)+)])? pub $field: $type,)*
            /// The loaded model's name, or `default`.
            pub model: Option<String>,
            /// Most tokens to generate.
            pub max_tokens: Option<u64>,
            /// How many answers, 1 to 8.
            pub n: Option<u64>,
            /// Send the answer as it is made, as server-sent events.
            pub stream: Option<bool>,
            /// Asked of a streamed answer.
            #[serde(deserialize_with = "object")]
            pub stream_options: Option<StreamOptions>,
            /// Up to four texts that end the answer.
            pub stop: Option<OneOrMany>,
            /// 0 to 2; 0 always takes the likeliest token.
            pub temperature: Option<f64>,
            /// Above 0, at most 1.
            pub top_p: Option<f64>,
            /// Only the k likeliest tokens; 0 or −1 for all.
            pub top_k: Option<i64>,
            /// 0 to 1; tokens less likely than this share of the likeliest are left out.
            pub min_p: Option<f64>,
            /// Above 0, at most 10; 1 is off.
            pub repetition_penalty: Option<f64>,
            /// −2 to 2.
            pub presence_penalty: Option<f64>,
            /// −2 to 2.
            pub frequency_penalty: Option<f64>,
            /// Token ids, as texts, to −100..100 added to their logits.
            pub logit_bias: Option<BTreeMap<String, f64>>,
            /// Same seed and request, same answer.
            pub seed: Option<i64>,
            /// Go on past tokens that end an answer, up to `max_tokens`; for measuring.
            pub ignore_eos: Option<bool>,
            /// Ignored.
            pub user: Option<String>,
            /// Not served; refused unless `text`.
            #[serde(deserialize_with = "present")]
            pub response_format: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub guided_json: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub guided_regex: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub guided_choice: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub guided_grammar: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub structured_outputs: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub json_schema: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub grammar: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub min_tokens: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub stop_token_ids: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub bad_words: Option<Value>,
            /// Other servers' extension, not served; refused when it asks for something.
            #[serde(deserialize_with = "present")]
            pub use_beam_search: Option<Value>,
        }
    };
}

request! {
    /// Body of `POST /v1/chat/completions`.
    ChatRequest {
        /// The chat so far.
        #[serde(deserialize_with = "objects")]
        messages: Vec<Message>,
        /// Most tokens to generate; the newer name.
        max_completion_tokens: Option<u64>,
        /// Report log-probabilities.
        logprobs: Option<bool>,
        /// With `logprobs`: how many alternatives for each token, 0 to 20.
        top_logprobs: Option<u64>,
        /// Variables for the chat template, such as `enable_thinking`.
        chat_template_kwargs: Option<BTreeMap<String, Value>>,
        /// Not served; refused when not empty.
        #[serde(deserialize_with = "present")]
        tools: Option<Value>,
        /// Refused unless `none` or `auto`.
        #[serde(deserialize_with = "present")]
        tool_choice: Option<Value>,
        /// Not served; refused when not empty.
        #[serde(deserialize_with = "present")]
        functions: Option<Value>,
        /// Refused unless `none` or `auto`.
        #[serde(deserialize_with = "present")]
        function_call: Option<Value>,
        /// Not served; refused when not null.
        #[serde(deserialize_with = "present")]
        audio: Option<Value>,
        /// Refused unless `["text"]`.
        #[serde(deserialize_with = "present")]
        modalities: Option<Value>,
        /// Not served; refused when not null.
        #[serde(deserialize_with = "present")]
        web_search_options: Option<Value>,
    }
}

request! {
    /// Body of `POST /v1/completions`.
    CompletionRequest {
        /// What to continue. Control tokens may be written in it.
        prompt: Option<Prompt>,
        /// Begin the answer with the prompt.
        echo: Option<bool>,
        /// Report log-probabilities with this many alternatives, 0 to 5.
        logprobs: Option<u64>,
        /// Not served; refused when above 1.
        best_of: Option<u64>,
        /// Not served; refused when not empty.
        suffix: Option<String>,
        /// Not served; refused when not empty.
        #[serde(deserialize_with = "present")]
        tools: Option<Value>,
    }
}
