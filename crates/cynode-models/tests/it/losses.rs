//! What a client's dialect has no place for. Nothing else may be lost on the way to it.

use cynode_models::dialect::{
    Dialect,
    canonical::{CanonicalResponse, ContentPart, StopReason, TokenUsage, ToolInput},
};

pub(crate) struct Loss {
    pub(crate) client: Dialect,
    pub(crate) what: &'static str,
    /// Takes from an answer what is lost.
    pub(crate) apply: fn(&mut CanonicalResponse),
}

pub(crate) const TABLE: &[Loss] = &[
    Loss {
        client: Dialect::Chat,
        what: "Chat has no place for seals: a client of Chat never gives thoughts back",
        apply: |answer| {
            for part in &mut answer.parts {
                if let ContentPart::Reasoning(thought) = part {
                    thought.seal = None;
                }
            }
        },
    },
    Loss {
        client: Dialect::Chat,
        what: "Chat has no place for thoughts without words",
        apply: |answer| {
            answer.parts.retain(|part| match part {
                ContentPart::Reasoning(thought) => !thought.text.is_empty(),
                _ => true,
            });
        },
    },
    Loss {
        client: Dialect::Chat,
        what: "Chat has one text in an answer: several become one, before the calls",
        apply: |answer| {
            let mut texts = String::new();
            let mut first = None;
            let mut kept = Vec::new();
            for part in answer.parts.drain(..) {
                match part {
                    ContentPart::Text(text) => {
                        first.get_or_insert(kept.len());
                        texts.push_str(&text.text);
                    }
                    part => kept.push(part),
                }
            }
            let calls = kept.iter().position(|part| matches!(part, ContentPart::ToolCall(_)));
            let place = first.map(|first| calls.map_or(first, |calls| first.min(calls)));
            if let Some(place) = place {
                kept.insert(place, ContentPart::from_text(texts));
            }
            answer.parts = kept;
        },
    },
    Loss {
        client: Dialect::Chat,
        what: "Chat says `stop` for a stop sequence and for a pause as for any end",
        apply: plain_end,
    },
    Loss {
        client: Dialect::Responses,
        what: "Responses says `completed` for a stop sequence and for a pause as for any end",
        apply: plain_end,
    },
    Loss {
        client: Dialect::Chat,
        what: "Chat says `length` for a full context as for a reached limit",
        apply: plain_limit,
    },
    Loss {
        client: Dialect::Responses,
        what: "Responses says `max_output_tokens` for a full context as for a reached limit",
        apply: plain_limit,
    },
    Loss {
        client: Dialect::Messages,
        what: "Messages must say what was used: nothing said is zero",
        apply: |answer| {
            answer.usage.get_or_insert(TokenUsage::default());
        },
    },
    Loss {
        client: Dialect::Messages,
        what: "Messages gives tools objects: the text is written anew, and nothing is an empty object",
        apply: |answer| {
            for part in &mut answer.parts {
                if let ContentPart::ToolCall(call) = part
                    && let ToolInput::Json(text) = &call.input
                {
                    let text = if text.is_empty() { "{}" } else { text };
                    let object: serde_json::Value = serde_json::from_str(text).unwrap();
                    call.input = ToolInput::Json(object.to_string());
                }
            }
        },
    },
    Loss {
        client: Dialect::Messages,
        what: "Messages has no tools for free text, and so no client of it offers one",
        apply: |answer| {
            for part in &mut answer.parts {
                if let ContentPart::ToolCall(call) = part
                    && let ToolInput::Free(text) = &call.input
                {
                    call.input = ToolInput::Json(serde_json::json!({ "input": text }).to_string());
                }
            }
        },
    },
    Loss {
        client: Dialect::Messages,
        what: "Messages has no groups of tools, and so no client of it offers one",
        apply: no_namespace,
    },
    Loss {
        client: Dialect::Chat,
        what: "Chat has no groups of tools, and so no client of it offers one",
        apply: no_namespace,
    },
];

fn plain_end(answer: &mut CanonicalResponse) {
    if let StopReason::StopSequence(_) | StopReason::Pause = answer.stop {
        answer.stop = StopReason::EndTurn;
    }
}

fn plain_limit(answer: &mut CanonicalResponse) {
    if answer.stop == StopReason::ContextWindow {
        answer.stop = StopReason::MaxTokens;
    }
}

fn no_namespace(answer: &mut CanonicalResponse) {
    for part in &mut answer.parts {
        if let ContentPart::ToolCall(call) = part {
            call.namespace = None;
        }
    }
}
