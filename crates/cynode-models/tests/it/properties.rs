//! What holds for every request, every answer and every cut of the bytes.

use cynode_models::{
    dialect::{
        Dialect, DialectCodec as _, ProviderCapabilities, ResponseContext, StreamDecoder,
        canonical::{
            CanonicalEvent, CanonicalMessage, CanonicalRequest, CanonicalResponse, CanonicalTool,
            ContentPart, CustomTool, CustomToolFormat, DialectExtras, DocumentPart, DocumentSource,
            FunctionTool, ImagePart, ImageSource, MessageRole, OutputFormat, ReasoningEffort,
            ReasoningPart, ReasoningSeal, StopReason, TextPart, ThinkingConfig, ThinkingMode,
            TokenUsage, ToolCall, ToolChoice, ToolInput, ToolNamespace, ToolResult,
        },
    },
    stream_observer::ResponseObserver,
};
use cynode_net::sse::{SseEvent, SseEventParser};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Number, Value, json};

use crate::support::{gather, parse, read_stream, write_stream};

fn words() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z ,.!?]{1,20}", "\\PC{1,12}", "[\\x00-\\x1f\"\\\\/\u{2028}\u{1f980}]{1,6}"]
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_-]{0,12}"
}

fn text() -> impl Strategy<Value = TextPart> {
    words().prop_map(TextPart::from_text)
}

fn schema() -> impl Strategy<Value = Value> {
    name()
        .prop_map(|name| json!({ "type": "object", "properties": { name: { "type": "string" } } }))
}

/// Arguments as Messages would write them, so that every dialect can.
fn arguments() -> impl Strategy<Value = String> {
    vec((name(), words()), 0..3).prop_map(|fields| {
        Value::Object(fields.into_iter().map(|(name, value)| (name, json!(value))).collect())
            .to_string()
    })
}

fn image() -> impl Strategy<Value = ContentPart> {
    let source = prop_oneof![
        Just(ImageSource::Url("https://example.com/a.png".into())),
        select(vec!["image/png", "image/jpeg"]).prop_map(|kind| ImageSource::Base64 {
            media_type: kind.into(),
            data: "iVBORw0KGgo=".into(),
        }),
    ];
    source.prop_map(|source| {
        ContentPart::Image(ImagePart { source, extras: DialectExtras::default() })
    })
}

fn document(dialect: Dialect) -> BoxedStrategy<ContentPart> {
    let inside =
        DocumentSource::Base64 { media_type: "application/pdf".into(), data: "JVBERi0=".into() };
    let url = DocumentSource::Url("https://example.com/a.pdf".into());
    let sources = match dialect {
        Dialect::Chat => vec![inside],
        Dialect::Responses => vec![inside, url],
        Dialect::Messages => vec![inside, url, DocumentSource::Text("Once".into())],
    };
    (select(sources), name())
        .prop_map(|(source, name)| {
            ContentPart::Document(DocumentPart {
                source,
                name: Some(name),
                extras: DialectExtras::default(),
            })
        })
        .boxed()
}

fn user(dialect: Dialect) -> impl Strategy<Value = CanonicalMessage> {
    let part =
        prop_oneof![4 => text().prop_map(ContentPart::Text), 1 => image(), 1 => document(dialect)];
    vec(part, 1..4).prop_map(|parts| CanonicalMessage::new(MessageRole::User, parts))
}

fn seal(dialect: Dialect) -> impl Strategy<Value = ReasoningSeal> {
    let id = (dialect == Dialect::Responses).then(|| "rs_1".to_owned());
    ("[A-Za-z0-9+/=]{1,20}", any::<bool>()).prop_map(move |(data, redacted)| ReasoningSeal {
        by: dialect,
        id: id.clone(),
        data,
        redacted: redacted && dialect == Dialect::Messages,
    })
}

fn thought(dialect: Dialect) -> impl Strategy<Value = ContentPart> {
    (words(), seal(dialect)).prop_map(|(text, seal)| {
        let text = if seal.redacted { String::new() } else { text };
        ContentPart::Reasoning(ReasoningPart { text, seal: Some(seal) })
    })
}

fn calls(dialect: Dialect) -> impl Strategy<Value = Vec<ToolCall>> {
    let responses = dialect == Dialect::Responses;
    vec((name(), arguments(), words(), any::<bool>(), any::<bool>()), 1..4).prop_map(move |calls| {
        let call = |(index, (name, arguments, words, free, grouped))| ToolCall {
            id: format!("call_{index}"),
            name,
            namespace: (grouped && responses).then(|| "group".to_owned()),
            input: if free && responses {
                ToolInput::Free(words)
            } else {
                ToolInput::Json(arguments)
            },
            extras: DialectExtras::default(),
        };
        calls.into_iter().enumerate().map(call).collect()
    })
}

/// A turn of the model, with the results of the tools that it called.
fn turn(dialect: Dialect) -> impl Strategy<Value = Vec<CanonicalMessage>> {
    let thought = option::of(thought(dialect));
    let calls = prop_oneof![Just(Vec::new()), calls(dialect)];
    let result = prop_oneof![Just(Vec::new()), vec(text().prop_map(ContentPart::Text), 1..3)];
    (thought, text(), calls, result, any::<bool>()).prop_map(
        move |(thought, said, calls, result, failed)| {
            // Chat gives no thoughts back.
            let thought = thought.filter(|_| dialect != Dialect::Chat);
            let results: Vec<_> = calls
                .iter()
                .map(|call| {
                    ContentPart::ToolResult(ToolResult {
                        id: call.id.clone(),
                        parts: result.clone(),
                        is_error: failed && dialect == Dialect::Messages,
                        custom: matches!(call.input, ToolInput::Free(_)),
                        extras: DialectExtras::default(),
                    })
                })
                .collect();
            let calls = calls.into_iter().map(ContentPart::ToolCall);
            let parts = thought.into_iter().chain([ContentPart::Text(said)]).chain(calls).collect();
            let mut messages = vec![CanonicalMessage::new(MessageRole::Assistant, parts)];
            if !results.is_empty() {
                messages.push(CanonicalMessage::new(MessageRole::Tool, results));
            }
            messages
        },
    )
}

fn conversation(dialect: Dialect) -> impl Strategy<Value = Vec<CanonicalMessage>> {
    let developer = text()
        .prop_map(|text| CanonicalMessage::new(MessageRole::System, vec![ContentPart::Text(text)]));
    vec((user(dialect), turn(dialect), option::of(developer)), 1..3).prop_map(|rounds| {
        rounds
            .into_iter()
            .flat_map(|(user, turn, developer)| {
                [user].into_iter().chain(turn).chain(developer).collect::<Vec<_>>()
            })
            .collect()
    })
}

fn tool(dialect: Dialect) -> BoxedStrategy<CanonicalTool> {
    let function = (name(), option::of(words()), schema(), any::<bool>())
        .prop_map(|(name, description, parameters, strict)| {
            let extras = DialectExtras::default();
            CanonicalTool::Function(FunctionTool { name, description, parameters, strict, extras })
        })
        .boxed();
    if dialect != Dialect::Responses {
        return function;
    }
    let format = prop_oneof![
        Just(CustomToolFormat::Text),
        words()
            .prop_map(|definition| CustomToolFormat::Grammar { syntax: "lark".into(), definition }),
    ];
    let custom = (name(), option::of(words()), option::of(format)).prop_map(
        |(name, description, format)| {
            CanonicalTool::Custom(CustomTool {
                name,
                description,
                format,
                extras: DialectExtras::default(),
            })
        },
    );
    let one = prop_oneof![function, custom].boxed();
    let group = (name(), option::of(words()), vec(one.clone(), 1..3)).prop_map(
        |(name, description, tools)| {
            CanonicalTool::Namespace(ToolNamespace {
                name,
                description,
                tools,
                extras: DialectExtras::default(),
            })
        },
    );
    prop_oneof![3 => one, 1 => group].boxed()
}

fn thinking(dialect: Dialect) -> BoxedStrategy<ThinkingConfig> {
    let with = |effort, mode, summary| ThinkingConfig {
        effort,
        mode,
        summary,
        extras: DialectExtras::default(),
    };
    match dialect {
        Dialect::Chat => select(ReasoningEffort::ALL.to_vec())
            .prop_map(move |effort| with(Some(effort), None, None))
            .boxed(),
        Dialect::Responses => {
            (select(ReasoningEffort::ALL.to_vec()), option::of(Just("auto".to_owned())))
                .prop_map(move |(effort, summary)| with(Some(effort), None, summary))
                .boxed()
        }
        Dialect::Messages => {
            let efforts = vec![
                ReasoningEffort::Low,
                ReasoningEffort::Medium,
                ReasoningEffort::High,
                ReasoningEffort::Xhigh,
                ReasoningEffort::Max,
            ];
            let modes = vec![
                ThinkingMode::Adaptive,
                ThinkingMode::BetweenTools,
                ThinkingMode::Budget(2048),
                ThinkingMode::Disabled,
            ];
            (option::of(select(efforts)), select(modes))
                .prop_map(move |(effort, mode)| with(effort, Some(mode), None))
                .boxed()
        }
    }
}

fn output(dialect: Dialect) -> BoxedStrategy<OutputFormat> {
    let messages = dialect == Dialect::Messages;
    let schema = (name(), option::of(words()), schema(), any::<bool>()).prop_map(
        move |(name, description, schema, strict)| OutputFormat::JsonSchema {
            name: (!messages).then_some(name),
            description: description.filter(|_| !messages),
            schema,
            strict: strict || messages,
        },
    );
    if messages {
        schema.boxed()
    } else {
        prop_oneof![Just(OutputFormat::JsonObject), schema].boxed()
    }
}

fn choice() -> impl Strategy<Value = ToolChoice> {
    prop_oneof![
        Just(ToolChoice::Auto),
        Just(ToolChoice::Required),
        name().prop_map(ToolChoice::One),
    ]
}

/// The least that an answer must be allowed to have: more than the thoughts before it.
fn least(thinking: Option<&ThinkingConfig>) -> u32 {
    match thinking.and_then(|thinking| thinking.mode) {
        Some(ThinkingMode::Budget(budget)) => budget + 1,
        _ => 1,
    }
}

/// A request that `dialect` can say in full.
fn request(dialect: Dialect) -> impl Strategy<Value = CanonicalRequest> {
    let chat = dialect == Dialect::Chat;
    let messages = dialect == Dialect::Messages;
    let asked = (vec(text(), 0..3), conversation(dialect), vec(tool(dialect), 1..3));
    let chosen = (option::of(choice()), option::of(any::<bool>()), any::<bool>());
    let limits = (
        option::of(1_u32..100_000),
        option::of(
            (0_u8..=10).prop_map(|tenths| Number::from_f64(f64::from(tenths) / 10.0).unwrap()),
        ),
        vec(words(), 0..3),
        option::of(any::<i64>()),
    );
    let form = (option::of(output(dialect)), option::of(thinking(dialect)), option::of(name()));
    (name(), asked, chosen, limits, form).prop_map(
        move |(
            model,
            (instructions, conversation, tools),
            (tool_choice, parallel, stream),
            (limit, temperature, stop, seed),
            (output, thinking, user),
        )| CanonicalRequest {
            model,
            instructions,
            messages: conversation,
            tools,
            // Messages says it only beside a choice.
            parallel_tool_calls: parallel.filter(|_| !messages || tool_choice.is_some()),
            tool_choice,
            output,
            max_output_tokens: if messages {
                Some(limit.unwrap_or(1).max(least(thinking.as_ref())))
            } else {
                limit
            },
            top_p: temperature.clone(),
            temperature,
            stop: if dialect == Dialect::Responses { Vec::new() } else { stop },
            seed: seed.filter(|_| chat),
            thinking,
            verbosity: (!messages).then(|| "low".to_owned()),
            user,
            stream,
            include_usage: stream,
            extras: DialectExtras::default(),
        },
    )
}

fn dialect() -> impl Strategy<Value = Dialect> {
    select(Dialect::ALL.to_vec())
}

/// An answer that every dialect can say in full.
fn answer() -> impl Strategy<Value = CanonicalResponse> {
    let usage = (0_u32..9000, 0_u32..9000, 0_u32..9000, 0_u32..9000, 0_u32..9000).prop_map(
        |(plain, cached, written, said, thought)| TokenUsage {
            input: u64::from(plain) + u64::from(cached) + u64::from(written),
            cached_input: cached.into(),
            cache_written: written.into(),
            output: u64::from(said) + u64::from(thought),
            reasoning: thought.into(),
        },
    );
    let calls = prop_oneof![Just(Vec::new()), calls(Dialect::Chat)];
    (option::of(words()), option::of(words()), calls, usage, any::<bool>()).prop_map(
        |(thought, said, calls, usage, cut)| {
            let stop = match (cut, calls.is_empty()) {
                (true, _) => StopReason::MaxTokens,
                (false, true) => StopReason::EndTurn,
                (false, false) => StopReason::ToolCalls,
            };
            let thought =
                thought.map(|text| ContentPart::Reasoning(ReasoningPart { text, seal: None }));
            let parts = thought
                .into_iter()
                .chain(said.map(ContentPart::from_text))
                .chain(calls.into_iter().map(ContentPart::ToolCall))
                .collect();
            CanonicalResponse { id: "a".into(), model: "m".into(), parts, stop, usage: Some(usage) }
        },
    )
}

fn reply() -> ResponseContext {
    ResponseContext { include_usage: true, ..ResponseContext::default() }
}

fn any_json() -> impl Strategy<Value = Value> {
    let keys = [
        "type",
        "role",
        "content",
        "messages",
        "input",
        "tools",
        "function",
        "name",
        "arguments",
        "id",
        "call_id",
        "delta",
        "choices",
        "index",
        "output_index",
        "item",
        "response",
        "usage",
        "error",
        "message",
        "model",
        "system",
        "source",
        "text",
        "tool_calls",
        "content_block",
        "summary",
        "output",
        "status",
        "stop_reason",
        "finish_reason",
    ];
    let types = [
        "message",
        "text",
        "function",
        "function_call",
        "reasoning",
        "image",
        "tool_use",
        "user",
        "assistant",
        "tool",
        "tool_result",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.completed",
        "custom",
        "error",
        "output_text",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words().prop_map(Value::from),
        select(types.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((select(keys.to_vec()), inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_written_and_read_again_is_the_same(
        (dialect, request) in dialect().prop_flat_map(|dialect| (Just(dialect), request(dialect)))
    ) {
        let written = dialect.encode_request(&request, &ProviderCapabilities::default()).unwrap();
        prop_assert_eq!(dialect.decode_request(&written).unwrap(), request);
    }

    #[test]
    fn a_request_that_is_refused_or_not_never_changes_its_words(
        (from, request) in dialect().prop_flat_map(|dialect| (Just(dialect), request(dialect))),
        to in dialect(),
    ) {
        let body = from.encode_request(&request, &ProviderCapabilities::default()).unwrap();
        let read = from.decode_request(&body).unwrap();
        if let Ok(written) = to.encode_request(&read, &ProviderCapabilities::default()) {
            let back = to.decode_request(&written).unwrap();
            prop_assert_eq!(texts(&back), texts(&request));
            prop_assert_eq!(
                (&back.model, &back.temperature, &back.user, back.stream),
                (&request.model, &request.temperature, &request.user, request.stream)
            );
        }
    }

    #[test]
    fn an_answer_is_the_same_for_every_client_whole_and_in_pieces(answer in answer(), dialect in dialect()) {
        let body = dialect.encode_response(&answer, &reply()).unwrap();
        prop_assert_eq!(&dialect.decode_response(&body).unwrap(), &answer);
        let bytes = write_stream(dialect, answer.to_events(), &reply());
        prop_assert_eq!(gather(&read_stream(dialect, &parse(&bytes))).unwrap(), answer);
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_events(
        answer in answer(),
        dialect in dialect(),
        ending in select(vec!["\n", "\r\n", "\r"]),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes = write_stream(dialect, answer.to_events(), &reply());
        let bytes = String::from_utf8(bytes).unwrap().replace('\n', ending).into_bytes();
        let whole = parse(&bytes);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        places.sort_unstable();
        let (mut parser, mut events, mut start) = (SseEventParser::new(1 << 20), Vec::new(), 0);
        for end in places.into_iter().chain([bytes.len()]) {
            parser.push_bytes(&bytes[start..end], &mut events).unwrap();
            start = end;
        }
        prop_assert_eq!(&events, &whole);
        let (mut parser, mut events) = (SseEventParser::new(1 << 20), Vec::new());
        for byte in &bytes {
            parser.push_bytes(std::slice::from_ref(byte), &mut events).unwrap();
        }
        prop_assert_eq!(events, whole);
    }

    #[test]
    fn a_stream_that_ends_early_ends_with_an_error(answer in answer(), dialect in dialect(), cut in any::<prop::sample::Index>()) {
        let events = parse(&write_stream(dialect, answer.to_events(), &reply()));
        let kept = cut.index(events.len());
        let whole = gather(&read_stream(dialect, &events)).unwrap();
        let told = read_stream(dialect, &events[..kept]);
        match told.last() {
            Some(CanonicalEvent::Failed(error)) => {
                prop_assert_eq!(&error.message, "the provider's stream ended before the answer did");
            }
            // Chat is complete when it has said why it ended; all that may be missing is what was used.
            Some(CanonicalEvent::Ended { .. }) if dialect == Dialect::Chat => {
                prop_assert_eq!(gather(&told).unwrap().parts, whole.parts);
            }
            last => prop_assert!(false, "the last event is {last:?}"),
        }
    }

    #[test]
    fn no_json_makes_a_reader_panic(value in any_json(), dialect in dialect()) {
        let _ = dialect.decode_request(&value);
        let _ = dialect.decode_response(&value);
        let _ = dialect.decode_error(500, &value, None);
        let _ = ResponseObserver::new(dialect).observe_response(&value);
    }

    #[test]
    fn whatever_is_read_can_be_written_or_is_refused(value in any_json(), from in dialect(), to in dialect()) {
        if let Ok(request) = from.decode_request(&value) {
            let _ = to.encode_request(&request, &ProviderCapabilities::default());
        }
        if let Ok(answer) = from.decode_response(&value) {
            let _ = to.encode_response(&answer, &reply());
            let _ = write_stream(to, answer.to_events(), &reply());
        }
    }

    #[test]
    fn no_events_make_a_stream_reader_panic(values in vec(any_json(), 0..8), from in dialect(), to in dialect()) {
        let mut reader = StreamDecoder::new(from);
        let mut said = Vec::new();
        for value in values {
            said.extend(reader.decode_event(&SseEvent { name: String::new(), data: value.to_string() }));
        }
        said.extend(reader.finish_stream());
        let _ = write_stream(to, said, &reply());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(chunks in vec(vec(any::<u8>(), 0..40), 0..6), limit in 0_usize..64) {
        let (mut parser, mut events) = (SseEventParser::new(limit), Vec::new());
        for chunk in chunks {
            if parser.push_bytes(&chunk, &mut events).is_err() {
                break;
            }
        }
        prop_assert!(events.iter().all(|event| event.data.len() <= limit * 3));
    }
}

/// All that people and the model said, in order.
fn texts(request: &CanonicalRequest) -> Vec<String> {
    let said =
        request.messages.iter().flat_map(|message| &message.parts).flat_map(|part| match part {
            ContentPart::Text(text) => vec![text.text.clone()],
            ContentPart::ToolResult(result) => result
                .parts
                .iter()
                .filter_map(|part| match part {
                    ContentPart::Text(text) => Some(text.text.clone()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        });
    request.instructions.iter().map(|text| text.text.clone()).chain(said).collect()
}
